#pragma once
// When each operation really ran.

#include <array>
#include <vector>

#include "engine/plan/timeline.h"
#include "kernels/device/stream.h"

namespace aliquot {

/// Takes the time at the beginning and the end of every operation on its own stream, of the last steps. Takes no memory
/// once made; costs two pieces of work an operation. Used from the rank's own thread; the plan must outlive it.
class TimelineRecorder {
 public:
  explicit TimelineRecorder(const Plan& plan);

  void begin(Stream& lane, OperationId operation, int64_t step);
  void end(Stream& lane, OperationId operation, int64_t step);

  /// Step `last` - 1, where `last` is the last that was finished: the one after it tells what its end was hidden under.
  /// All streams have come to rest. Its operations' seconds count from when the model's own thread ended the step before.
  /// Empty before three steps were finished.
  Timeline timeline(int64_t last) const;
  /// Seconds of the steady clock at that second 0.
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
