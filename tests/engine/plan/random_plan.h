#pragma once
// Models, policies and topologies drawn at random, as odd as users can make them.

#include <cstdint>
#include <string>

#include "engine/plan/schedule.h"

namespace aliquot::testing {

struct RandomCase {
  ModelSpec model;
  Policy policy;
  Topology topology;
};

/// The same for the same seed, everywhere. What plan() must accept.
RandomCase draw(uint64_t seed, int most_ranks = 8, int most_units = 9);

/// `rank_count` host ranks, in order over nodes of up to `ranks_per_node`.
Topology hosts(int rank_count, int ranks_per_node);

/// For a failure's message: what it takes to draw it again, and what it is.
std::string describe(uint64_t seed, const RandomCase& drawn);

}  // namespace aliquot::testing
