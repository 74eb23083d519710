#pragma once
// Events that one rank records in a lane. Streams of other ranks of the process can wait for them.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/device/device_cuda.h"

namespace aliquot {

/// A ring of events with increasing numbers. The owner records the events. Any other thread may wait for a number after
/// it has read on the board that the owner has recorded the number.
///
/// If the event of a number has been overwritten, wait() uses a later event of the lane. This is correct, because a
/// lane executes in order: if the lane changes its stream, the new stream waits for the last event of the old one. It
/// cannot deadlock, because a wait depends only on work that was enqueued earlier. A deeper ring makes such longer
/// waits less frequent, but is not required.
class LaneEvents {
 public:
  static constexpr std::size_t kDepth = 32;

  /// Makes all events, on the GPU with this number.
  explicit LaneEvents(int ordinal);

  /// Called on the owner's thread. `number` must be larger than all previous numbers.
  void record(CudaStream& stream, uint64_t number);
  /// Makes later work on `stream` wait for the event of `number`. Does nothing for 0. Throws std::logic_error if
  /// neither this number nor a larger one has been recorded.
  void wait(CudaStream& stream, uint64_t number) const;

 private:
  struct NumberedEvent {
    std::unique_ptr<CudaEvent> event;
    std::atomic<uint64_t> number{0};
  };

  std::array<NumberedEvent, kDepth> events_;
  uint64_t recorded_count_ = 0;
  unsigned long long last_stream_id_ = 0;
};

}  // namespace aliquot
