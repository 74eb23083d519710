#include "checkpoint/file/io_lane.h"

#include <cstdlib>
#include <fmt/format.h>
#include <new>
#include <sys/mman.h>

#include "kernels/system/error.h"
#include "kernels/system/start_thread.h"

namespace aliquot {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;

}  // namespace

IoLane::IoLane() : thread_(start_thread("reading and writing checkpoints", [this] { work(); })) {}

IoLane::~IoLane() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

IoLane::Ticket IoLane::submit(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return ++submitted_;
}

void IoLane::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket || failure_; });
  if (failure_) std::rethrow_exception(failure_);
}

void IoLane::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (!jobs_.empty() && !failure_); });
    if (stopping_) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      job();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    ++done_;
    if (failure) failure_ = failure;
    changed_.notify_all();
  }
}

StagingRing::StagingRing(Ledger* ledger) {
  constexpr int64_t kRingBytes = kChunks * kChunkBytes;
  static_assert(kRingBytes % kHugePageBytes == 0);
  if (ledger != nullptr) booking_.emplace(*ledger, kRingBytes, Category::kStaging, "checkpoint staging");
  memory_ = static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, kRingBytes));
  if (memory_ == nullptr) {
    throw UnavailableError(
        fmt::format("cannot allocate {} MiB of staging memory for a checkpoint: free some memory", kRingBytes >> 20));
  }
  // Direct I/O makes one disk request for each physically contiguous range. Huge pages double its speed.
  ::madvise(memory_, kRingBytes, MADV_HUGEPAGE);  // a failure is harmless
}

StagingRing::~StagingRing() { std::free(memory_); }

}  // namespace aliquot
