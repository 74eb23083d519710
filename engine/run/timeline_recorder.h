#pragma once
// Recording of the times at which operations run.

#include <array>
#include <vector>

#include "engine/plan/timeline.h"
#include "kernels/device/stream.h"

namespace aliquot {

/// Records the start and end times of every operation of the last three steps, on the stream of the operation.
/// Allocates only in the constructor. Adds two tasks per operation to the streams. Used from the rank's own thread. The
/// plan must outlive it.
class TimelineRecorder {
 public:
  explicit TimelineRecorder(const Plan& plan);

  void begin(Stream& lane, OperationId operation, int64_t step);
  void end(Stream& lane, OperationId operation, int64_t step);

  /// Returns the timeline of step `last` - 1, where `last` is the last finished step. The compute of step `last` may
  /// hide communication of step `last` - 1. Second 0 is the time at which the compute lane finished step `last` - 2.
  /// Returns an empty timeline before three steps are finished. All streams must be idle.
  Timeline timeline(int64_t last) const;
  /// Returns the steady-clock time of second 0 of timeline(last).
  double began(int64_t last) const;

 private:
  static constexpr int64_t kSteps = 3;
  std::vector<TimeSpan>& spans(int64_t step) { return spans_[static_cast<std::size_t>(step % kSteps)]; }
  const std::vector<TimeSpan>& spans(int64_t step) const { return spans_[static_cast<std::size_t>(step % kSteps)]; }
  double compute_end(int64_t step) const;

  const Plan& plan_;
  std::array<std::vector<TimeSpan>, kSteps> spans_;
};

}  // namespace aliquot
