#pragma once
// Recording of the times at which operations run.

#include <memory>
#include <vector>

#include "engine/plan/timeline.h"
#include "kernels/device/device.h"
#include "kernels/device/time_marks.h"

namespace aliquot {

/// Records the start and end times of every operation of the last three steps, on the stream of the operation.
/// Allocates only in the constructor. Adds two TimeMarks per operation to the streams. Used from the rank's own thread.
/// Plan and device must outlive it.
class TimelineRecorder {
 public:
  static constexpr int64_t kSteps = 3;  // a step has the marks of the step kSteps before it

  TimelineRecorder(const Plan& plan, Device& device);

  void begin(Stream& lane, OperationId operation, int64_t step);
  void end(Stream& lane, OperationId operation, int64_t step);

  /// Returns the timeline of step `last` - 1, where `last` is the last finished step. The compute of step `last` may
  /// hide communication of step `last` - 1. Second 0 is the time at which the compute lane finished step `last` - 2.
  /// `began`, if not null, receives the time of second 0, in seconds of now_seconds(). Returns an empty timeline before
  /// three steps are finished. All streams must be idle.
  Timeline timeline(int64_t last, double* began);

 private:
  std::size_t mark_of(OperationId operation, int64_t step) const;
  TimeSpan span(OperationId operation, int64_t step) const;
  double compute_end(int64_t step) const;

  const Plan& plan_;
  std::unique_ptr<TimeMarks> marks_;  // two for each operation of each step: its start and its end
  std::vector<double> seconds_;       // the times of the marks when timeline() was called
};

}  // namespace aliquot
