#pragma once
// A thread for file I/O that overlaps with the work of the calling thread, and the buffers that both use.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "kernels/system/booking.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Runs jobs one at a time, in order of submission, on its own thread. After a job that threw, no further job runs.
/// Used by one thread. The destructor drops jobs that have not started and waits for the running job.
class IoLane {
 public:
  using Ticket = int64_t;

  IoLane();
  IoLane(const IoLane&) = delete;
  IoLane& operator=(const IoLane&) = delete;
  ~IoLane();

  /// Returns the ticket of the job. The first ticket is 1.
  Ticket submit(std::function<void()> job);
  /// Blocks until the job with this ticket and all earlier jobs are done. Rethrows the exception of the first job that
  /// failed.
  void wait(Ticket ticket);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  Ticket submitted_ = 0, done_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread thread_;
};

/// A ring of page-aligned buffers (chunks), recorded in the ledger if one is given. Four chunks of 1 MiB keep a disk
/// busy and fit in the processor's cache, so that data is hashed and copied from there.
class StagingRing {
 public:
  static constexpr int64_t kChunks = 4, kChunkBytes = int64_t{1} << 20;

  explicit StagingRing(Ledger* ledger);
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  ~StagingRing();

  /// Returns chunk number `index` % kChunks.
  std::span<std::byte> chunk(int64_t index) const {
    return {memory_ + index % kChunks * kChunkBytes, static_cast<size_t>(kChunkBytes)};
  }

 private:
  std::optional<Booking> booking_;
  std::byte* memory_;
};

}  // namespace aliquot
#pragma GCC visibility pop
