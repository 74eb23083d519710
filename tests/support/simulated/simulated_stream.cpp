#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/support/simulated/simulated_stream_cuda.h"

namespace {

std::atomic<unsigned long long> stream_count{0};
std::atomic<unsigned> longest_delay{200};  // in microseconds

}  // namespace

namespace aliquot::simulated {

void fail(const char* error) {
  std::fprintf(stderr, "simulated CUDA runtime: %s\n", error);
  std::abort();
}

void set_longest_delay(int microseconds) { longest_delay = static_cast<unsigned>(microseconds); }

void sleep_randomly() {
  thread_local std::minstd_rand random(static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
  if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % longest_delay));
}

}  // namespace aliquot::simulated

CUstream_st::CUstream_st(int on_gpu) : gpu(on_gpu), number(++stream_count), worker_([this] { work(); }) {}

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  worker_.join();
}

void CUstream_st::enqueue(std::function<void()> work, const aliquot::simulated::MemoryRanges& uses) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(work), uses});
  changed_.notify_all();
}

bool CUstream_st::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty();
}

bool CUstream_st::uses(const aliquot::simulated::MemoryRange& memory) {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(
      queue_, [&](const Task& task) { return task.uses[0].overlaps(memory) || task.uses[1].overlaps(memory); });
}

void CUstream_st::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty(); });
}

void CUstream_st::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !queue_.empty() || stopping_; });
    if (queue_.empty()) return;
    const auto work = std::move(queue_.front().work);
    lock.unlock();
    aliquot::simulated::sleep_randomly();
    work();
    lock.lock();
    queue_.pop_front();
    changed_.notify_all();
  }
}
