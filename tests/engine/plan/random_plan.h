#pragma once
// Creates random models, policies and topologies for tests of the planner, including unusual combinations.

#include <cstdint>
#include <string>

#include "engine/plan/schedule.h"

namespace aliquot::testing {

struct RandomCase {
  ModelSpec model;
  Policy policy;
  Topology topology;
};

/// Draws a case that plan() must accept. The same seed gives the same case on every platform.
RandomCase draw(uint64_t seed, int most_ranks = 8, int most_units = 9);
/// Returns the case with all ranks on one GPU.
RandomCase on_one_gpu(RandomCase drawn);
/// Returns the case with one GPU for each rank, over NCCL.
RandomCase over_nccl(RandomCase drawn);
/// Returns the plan, or nullopt if plan() rejects the policy.
std::optional<Plan> planned(const RandomCase& drawn);

/// Draws a case that plan_pipeline() must accept, with 2 to `most_stages` pipeline stages of up to `most_ranks` ranks.
/// Each unit of the model has one use, but in a tied model the first unit is used again at the end.
RandomCase draw_pipeline(uint64_t seed, int most_stages = 5, int most_ranks = 4);

/// Returns a topology of `rank_count` host ranks, assigned in order to nodes of up to `ranks_per_node` ranks.
Topology hosts(int rank_count, int ranks_per_node);

/// Describes the case for failure messages: its seed and its parameters.
std::string describe(uint64_t seed, const RandomCase& drawn);

}  // namespace aliquot::testing
