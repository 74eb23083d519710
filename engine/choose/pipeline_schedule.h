#pragma once
// The choice of everything that a policy leaves open, with or without a memory budget.

#include <vector>

#include "engine/cost/simulate.h"

namespace aliquot {

/// The memory that a rank has.
struct MemoryLimit {
  int64_t bytes = 0;  // 0: no limit
  /// With kBudget, plans must fit the limit, and choose_plans() chooses what plan_pipeline_within() chooses. With
  /// kPreferred, the limit affects only the choice of a schedule, and plans exceed it if no schedule fits.
  enum Kind : uint8_t { kBudget, kPreferred } kind = kBudget;
};

/// Makes the plans of all pipeline stages. If the policy has no cut, chooses one. With PipelineSchedule::kAuto, chooses
/// the fastest schedule, by simulation with `cost`, of those that fit the limit. Of schedules whose times differ by at
/// most 1 %, takes the one that needs the least memory. With kReplayAuto, sets Policy::replay_every so that
/// replay_share() is at most kReplayShare. If the policy has a cut or several virtual stages, considers only schedules
/// with that number of virtual stages. Plan::choice describes the choices. Throws what plan_pipeline() and
/// plan_pipeline_within() throw.
std::vector<Plan> choose_plans(const MemoryLimit& limit, const ModelSpec& model, const Policy& policy,
                               const Topology& topology, const CostModel& cost);

/// Returns the share of the time that replays take in simulation (Policy::replay_every). 0 without replays; with
/// kReplayAuto, the time of a replay divided by that of a step.
double replay_share(const std::vector<Plan>& stages, const CostModel& cost);

}  // namespace aliquot
