#pragma once
// The times at which the operations of a step run, simulated or recorded.

#include <vector>

#include "engine/plan/schedule.h"

#pragma GCC visibility push(default)
namespace aliquot {

struct TimeSpan {
  double start_seconds = 0, end_seconds = 0;
  double seconds() const { return end_seconds - start_seconds; }
};

/// One step in the middle of a run. Second 0 is the time at which the compute lane ended the previous step.
struct Timeline {
  std::vector<TimeSpan> operations;
  double step_seconds = 0;
  double compute_seconds = 0;                  // forward, backward and update
  double communication_seconds = 0;            // sum of the durations of all collectives and of sends and receives
  double hidden_seconds = 0;                   // part of communication_seconds during which the compute lane was busy
  int64_t sent_bytes = 0, received_bytes = 0;  // by one rank; set only by the simulator
  int64_t crossing_bytes = 0;                  // sent by the first node to other nodes; set only by the simulator

  /// The part of the step in which the compute lane is idle: the bubble of a pipeline, and waits for communication.
  double idle_share() const { return step_seconds > 0 ? 1 - compute_seconds / step_seconds : 0; }
  /// The part of communication that is hidden by compute. 1 if there is no communication.
  double hidden_share() const { return communication_seconds > 0 ? hidden_seconds / communication_seconds : 1; }
};

/// Computes compute_seconds, communication_seconds and hidden_seconds from `timeline.operations`. `busy` has the times
/// at which the compute lane works in this step and in the steps before and after it, in order, without overlaps.
void add_up(const Plan& plan, const std::vector<TimeSpan>& busy, Timeline& timeline);

}  // namespace aliquot
#pragma GCC visibility pop
