#include "engine/run/timeline_recorder.h"

#include <algorithm>

#include "kernels/system/seconds.h"

namespace aliquot {

TimelineRecorder::TimelineRecorder(const Plan& plan) : plan_(plan) {
  for (auto& step : spans_) step.resize(plan.schedule.operations.size());
}

void TimelineRecorder::begin(Stream& lane, OperationId operation, int64_t step) {
  TimeSpan& span = spans(step)[operation];
  lane.run([&span] { span.start_seconds = now_seconds(); });
}

void TimelineRecorder::end(Stream& lane, OperationId operation, int64_t step) {
  TimeSpan& span = spans(step)[operation];
  lane.run([&span] { span.end_seconds = now_seconds(); });
}

double TimelineRecorder::compute_end(int64_t step) const {
  double end = 0;
  for (std::size_t id = 0; id < plan_.schedule.operations.size(); ++id) {
    if (plan_.schedule.operations[id].lane == Lane::kCompute) end = std::max(end, spans(step)[id].end_seconds);
  }
  return end;
}

double TimelineRecorder::began(int64_t last) const { return compute_end(last - 2); }

Timeline TimelineRecorder::timeline(int64_t last) const {
  Timeline timeline;
  if (last < kSteps) return timeline;
  const double began = compute_end(last - 2);
  std::vector<TimeSpan> busy;
  for (int64_t step = last - 2; step <= last; ++step) {
    for (std::size_t id = 0; id < plan_.schedule.operations.size(); ++id) {
      TimeSpan span = spans(step)[id];
      span.start_seconds -= began;
      span.end_seconds -= began;
      if (step == last - 1) timeline.operations.push_back(span);
      if (is_busy_on_compute(plan_.schedule.operations[id]) && span.seconds() > 0) busy.push_back(span);
    }
  }
  timeline.step_seconds = compute_end(last - 1) - began;
  add_up(plan_, busy, timeline);
  return timeline;
}

}  // namespace aliquot
