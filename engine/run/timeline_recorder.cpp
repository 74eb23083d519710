#include "engine/run/timeline_recorder.h"

#include <algorithm>

namespace aliquot {

TimelineRecorder::TimelineRecorder(const Plan& plan, Device& device)
    : plan_(plan), seconds_(2 * kSteps * plan.schedule.operations.size()) {
  marks_ = make_time_marks(device, seconds_.size());
}

std::size_t TimelineRecorder::mark_of(OperationId operation, int64_t step) const {
  const std::size_t first = static_cast<std::size_t>(step % kSteps) * plan_.schedule.operations.size();
  return 2 * (first + static_cast<std::size_t>(operation));
}

void TimelineRecorder::begin(Stream& lane, OperationId operation, int64_t step) {
  marks_->set(lane, mark_of(operation, step));
}

void TimelineRecorder::end(Stream& lane, OperationId operation, int64_t step) {
  marks_->set(lane, mark_of(operation, step) + 1);
}

TimeSpan TimelineRecorder::span(OperationId operation, int64_t step) const {
  const std::size_t mark = mark_of(operation, step);
  return {.start_seconds = seconds_[mark], .end_seconds = seconds_[mark + 1]};
}

double TimelineRecorder::compute_end(int64_t step) const {
  double end = 0;
  for (OperationId id = 0; id < static_cast<OperationId>(plan_.schedule.operations.size()); ++id) {
    if (plan_.schedule.operations[id].lane == Lane::kCompute) end = std::max(end, span(id, step).end_seconds);
  }
  return end;
}

Timeline TimelineRecorder::timeline(int64_t last, double* began) {
  Timeline timeline;
  if (last < kSteps) return timeline;
  marks_->read(seconds_);
  const double zero = compute_end(last - 2);
  if (began != nullptr) *began = zero;
  std::vector<TimeSpan> busy;
  for (int64_t step = last - 2; step <= last; ++step) {
    for (OperationId id = 0; id < static_cast<OperationId>(plan_.schedule.operations.size()); ++id) {
      TimeSpan one = span(id, step);
      one.start_seconds -= zero;
      one.end_seconds -= zero;
      if (step == last - 1) timeline.operations.push_back(one);
      if (is_busy_on_compute(plan_.schedule.operations[id]) && one.seconds() > 0) busy.push_back(one);
    }
  }
  timeline.step_seconds = compute_end(last - 1) - zero;
  add_up(plan_, busy, timeline);
  return timeline;
}

}  // namespace aliquot
