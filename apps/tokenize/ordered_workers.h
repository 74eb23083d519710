#pragma once
// Threads that process inputs in parallel and return the outputs in the order of the inputs.

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/system/start_thread.h"

namespace aliquot {

/// push() and pop() are called by one thread.
template <typename Input, typename Output>
class OrderedWorkers {
 public:
  using Work = std::function<Output(const Input&)>;

  /// Calls `make_work` once on each thread. Throws UnavailableError if a thread cannot be started.
  OrderedWorkers(int thread_count, const std::function<Work()>& make_work) {
    try {
      for (int i = 0; i < thread_count; ++i)
        threads_.push_back(start_thread("encoding", [this, make_work] { run(make_work); }));
    } catch (...) {
      stop();
      throw;
    }
  }
  ~OrderedWorkers() { stop(); }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  void push(Input input) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::make_shared<Job>(std::move(input)));
    waiting_.push_back(jobs_.back());
    has_job_.notify_one();
  }
  /// The number of inputs whose outputs have not been returned.
  size_t pending_count() const { return jobs_.size(); }
  /// Waits for the output of the oldest input. Rethrows the exception of its work. pending_count() must not be 0.
  Output pop() {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Job> job = jobs_.front();
    is_done_.wait(lock, [&job] { return job->output || job->error; });
    jobs_.pop_front();
    if (job->error) std::rethrow_exception(job->error);
    return std::move(*job->output);
  }

 private:
  struct Job {
    explicit Job(Input given) : input(std::move(given)) {}
    Input input;
    std::optional<Output> output;
    std::exception_ptr error;
  };

  void run(const std::function<Work()>& make_work) {
    Work work;
    while (const std::shared_ptr<Job> job = next_job()) {
      std::optional<Output> output;
      std::exception_ptr error;
      try {
        if (!work) work = make_work();
        output.emplace(work(job->input));
        job->input = {};  // frees its memory before the output is used
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      job->output = std::move(output);
      job->error = error;
      is_done_.notify_one();
    }
  }

  std::shared_ptr<Job> next_job() {
    std::unique_lock lock(mutex_);
    has_job_.wait(lock, [this] { return stops_ || !waiting_.empty(); });
    if (stops_) return nullptr;
    std::shared_ptr<Job> job = waiting_.front();
    waiting_.pop_front();
    return job;
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
      has_job_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  std::mutex mutex_;
  std::condition_variable has_job_, is_done_;
  std::deque<std::shared_ptr<Job>> jobs_, waiting_;  // all pending jobs, and those that no thread has begun
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace aliquot
