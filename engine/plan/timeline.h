#pragma once
// When each operation of a step runs, as simulated or as recorded.

#include <vector>

#include "engine/plan/schedule.h"

#pragma GCC visibility push(default)
namespace aliquot {

struct TimeSpan {
  double start_seconds = 0, end_seconds = 0;
  double seconds() const { return end_seconds - start_seconds; }
};

/// One step of many, with the one before and the one after around it. Second 0 is when the compute lane has ended the
/// step before.
struct Timeline {
  std::vector<TimeSpan> operations;
  double step_seconds = 0;
  double compute_seconds = 0;                  // forward, backward and update
  double communication_seconds = 0;            // of all collectives, each for itself
  double hidden_seconds = 0;                   // of that, while the compute lane was busy
  int64_t sent_bytes = 0, received_bytes = 0;  // by one rank
  int64_t crossing_bytes = 0;                  // sent by the first node to others, over hosts

  /// 1: communication costs no time; 1 too where there is none.
  double hidden_share() const { return communication_seconds > 0 ? hidden_seconds / communication_seconds : 1; }
};

/// Fills in what follows from `timeline.operations`: seconds of compute, of communication, and of that under `busy`, the
/// compute lane's work of this step and its neighbours, in order and apart.
void add_up(const Plan& plan, const std::vector<TimeSpan>& busy, Timeline& timeline);

}  // namespace aliquot
#pragma GCC visibility pop
