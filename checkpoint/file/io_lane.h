#pragma once
// A thread that reads or writes while the rank's own thread does something else, and the memory they hand to each
// other.

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

/// Does jobs in the order they are given, one at a time, on a thread of its own. After a job that threw, the rest is
/// dropped. Used by one thread; the destructor drops what has not begun and waits for what has.
class IoLane {
 public:
  using Ticket = int64_t;

  IoLane();
  IoLane(const IoLane&) = delete;
  IoLane& operator=(const IoLane&) = delete;
  ~IoLane();

  /// Tickets count from 1.
  Ticket submit(std::function<void()> job);
  /// Returns when that job is done, and so all before it; rethrows the first that failed.
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

/// A ring of page-aligned chunks, booked in the ledger if one is given. As small as keeps a disk at work: what stays in a
/// processor's cache on its way is hashed and copied from there.
class StagingRing {
 public:
  static constexpr int64_t kChunks = 4, kChunkBytes = int64_t{1} << 20;

  explicit StagingRing(Ledger* ledger);
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  ~StagingRing();

  /// Chunk `index` modulo the ring.
  std::span<std::byte> chunk(int64_t index) const {
    return {memory_ + index % kChunks * kChunkBytes, static_cast<size_t>(kChunkBytes)};
  }

 private:
  std::optional<Booking> booking_;
  std::byte* memory_;
};

}  // namespace aliquot
#pragma GCC visibility pop
