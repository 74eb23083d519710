#pragma once
// Points in the order of one rank's lane that streams of other thread-ranks may wait for.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/device/device_cuda.h"

namespace aliquot {

/// A ring of events, each known by a number that grows. One owner records; any thread waits, once it has learnt through
/// the board that the owner has recorded the number. The ring need not be deep enough for the slowest waiter: a point that
/// is asked for after it was recorded over is answered by a later one of the same lane, and that is always right.
///   It implies the earlier point: a lane is in order, and if it changes its stream, the new one waits for the old one's
/// last point. And it cannot deadlock: a wait takes the event as recorded at that moment, so what it waits for had been
/// enqueued before it, and all that had been enqueued waits only for what was enqueued earlier still: no circle. A deeper
/// ring only means that less is waited for in vain.
class LaneEvents {
 public:
  static constexpr std::size_t kDepth = 32;

  /// The owner's thread. `number` is larger than all before.
  void record(CudaStream& stream, uint64_t number);
  /// Work enqueued on `stream` after this starts when the point has passed. 0 is passed from the beginning. Throws
  /// std::logic_error if no point of that number or a later one was recorded yet.
  void wait(CudaStream& stream, uint64_t number) const;

 private:
  struct NumberedEvent {
    std::unique_ptr<CudaEvent> event;  // made at its first use, before `number` is first set; then it stays
    std::atomic<uint64_t> number{0};
  };

  std::array<NumberedEvent, kDepth> events_;
  uint64_t recorded_count_ = 0;
  unsigned long long last_stream_id_ = 0;
};

}  // namespace aliquot
