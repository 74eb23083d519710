#include "sharding/cuda/lane_events_cuda.h"

#include <stdexcept>

namespace aliquot {

LaneEvents::LaneEvents(int ordinal) {
  for (NumberedEvent& point : events_) point.event = std::make_unique<CudaEvent>(ordinal);
}

void LaneEvents::record(CudaStream& stream, uint64_t number) {
  unsigned long long stream_id = 0;  // unlike a handle, an id is never reused
  check(cudaStreamGetId(stream.get(), &stream_id), "cudaStreamGetId()");
  if (recorded_count_ > 0 && stream_id != last_stream_id_) {
    stream.wait(events_[(recorded_count_ - 1) % kDepth].event->get());
  }
  last_stream_id_ = stream_id;
  NumberedEvent& point = events_[recorded_count_++ % kDepth];
  // Store the number after recording the event. A thread that reads the number then waits for this event or a later
  // one.
  stream.record(*point.event);
  point.number.store(number, std::memory_order_release);
}

void LaneEvents::wait(CudaStream& stream, uint64_t number) const {
  if (number == 0) return;
  const NumberedEvent* earliest = nullptr;
  uint64_t earliest_number = 0;
  for (const NumberedEvent& point : events_) {
    const uint64_t found = point.number.load(std::memory_order_acquire);
    if (found < number || (earliest != nullptr && found >= earliest_number)) continue;
    earliest = &point;
    earliest_number = found;
  }
  if (earliest == nullptr)
    throw std::logic_error("LaneEvents::wait(): no event with this sequence number was recorded");
  stream.wait(earliest->event->get());
}

}  // namespace aliquot
