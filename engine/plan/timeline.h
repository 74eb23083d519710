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

/// One step in the middle of a run. Second 0 is the time at which the compute lane ended the previous step. The time of
/// model code includes the collectives of the use.
struct Timeline {
  std::vector<TimeSpan> operations;
  double step_seconds = 0;
  double compute_seconds = 0;                  // forward, backward and update, without the collectives of uses
  double use_collective_seconds = 0;           // collectives of uses, during which the compute lane waits for data
  double communication_seconds = 0;            // sum of the durations of all collectives and of sends and receives
  double hidden_seconds = 0;                   // part of communication_seconds during which the compute lane was busy
  int64_t sent_bytes = 0, received_bytes = 0;  // by one rank; set only by the simulator
  int64_t crossing_bytes = 0;                  // sent by the first node to other nodes; set only by the simulator
  double transfer_seconds = 0;                 // time during which at least one send or receive runs
  /// The time that the link between nodes needs to send crossing_bytes. Only simulated.
  double link_seconds = 0;
  /// The time of second 0 on a clock that all pipeline stages share. simulate() counts it from second 0 of pipeline
  /// stage 0. It is 0 in a timeline that an engine returns.
  double begin_seconds = 0;

  /// The bubble share: the part of the step in which the compute lane is idle. It waits for other pipeline stages or
  /// for communication.
  double idle_share() const {
    return step_seconds > 0 ? 1 - (compute_seconds + use_collective_seconds) / step_seconds : 0;
  }
  /// The part of communication that is hidden by compute. 1 if there is no communication.
  double hidden_share() const { return communication_seconds > 0 ? hidden_seconds / communication_seconds : 1; }
};

/// Whether an operation runs while the compute lane works. Collectives of uses are part of the time of model code.
inline bool is_busy_on_compute(const Operation& operation) {
  return operation.lane == Lane::kCompute && operation.verb != Verb::kUseCollective;
}

/// Computes compute_seconds, communication_seconds, hidden_seconds and transfer_seconds from `timeline.operations`.
/// `busy` has the times at which the compute lane works in this step and in the steps before and after it, in order,
/// without overlaps.
void add_up(const Plan& plan, const std::vector<TimeSpan>& busy, Timeline& timeline);

}  // namespace aliquot
#pragma GCC visibility pop
