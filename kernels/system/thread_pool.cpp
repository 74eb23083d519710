#include "kernels/system/thread_pool.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/system/shared_counter.h"
#include "kernels/system/start_thread.h"

namespace aliquot {

struct ThreadPool::Workers {
  static constexpr int64_t kWaitTimeoutNanoseconds = 1'000'000'000;

  explicit Workers(int count_of_threads) : thread_count(count_of_threads) {
    threads.reserve(static_cast<std::size_t>(thread_count) - 1);
    try {
      for (int i = 1; i < thread_count; ++i)
        threads.push_back(start_thread("computing", [this, i] { worker_loop(i); }));
    } catch (...) {
      stop();  // ends the threads that started; the destructor does not run after an exception in the constructor
      throw;
    }
  }
  ~Workers() { stop(); }

  void stop() {
    stopping = true;
    started.raise_to(round + 1);
    for (auto& thread : threads) thread.join();
  }

  int64_t part_begin(int index) const {
    const int64_t grains = (count + grain - 1) / grain;
    return index == thread_count ? count : grains * index / thread_count * grain;
  }

  void run_part(int index) noexcept {
    try {
      if (part_begin(index) < part_begin(index + 1)) body(context, part_begin(index), part_begin(index + 1));
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  void worker_loop(int index) {
    for (uint64_t next = 1;; ++next) {
      while (!started.wait(next, kWaitTimeoutNanoseconds)) {
      }
      if (stopping) return;
      run_part(index);
      if (unfinished.fetch_sub(1) == 1) finished.raise_to(next);
    }
  }

  void run_round() {
    unfinished = thread_count - 1;
    failure = nullptr;
    ++round;
    started.raise_to(round);
    run_part(0);
    while (!finished.wait(round, kWaitTimeoutNanoseconds)) {
    }
    if (failure) std::rethrow_exception(failure);
  }

  const int thread_count;
  std::mutex busy;
  uint64_t round = 0;
  SharedCounter started, finished;
  std::atomic<int> unfinished{0};
  std::atomic<bool> stopping{false};
  int64_t count = 0, grain = 1;
  void (*body)(void*, int64_t, int64_t) = nullptr;
  void* context = nullptr;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
};

ThreadPool::ThreadPool(int thread_count) : thread_count_(thread_count < 1 ? 1 : thread_count) {
  if (thread_count_ > 1) workers_ = std::make_unique<Workers>(thread_count_);
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::run(int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
  const std::unique_lock lock(workers_->busy, std::try_to_lock);
  // If another lane uses the threads, waiting for them would take longer than running the loop on this thread.
  if (!lock.owns_lock()) {
    body(context, 0, count);
    return;
  }
  workers_->count = count;
  workers_->grain = grain;
  workers_->body = body;
  workers_->context = context;
  workers_->run_round();
}

}  // namespace aliquot
