#pragma once
// What moving bytes between nodes takes, measured on the links that are there.

#include <functional>

#include "engine/cost/simulate.h"
#include "sharding/world.h"

namespace aliquot {

/// Of a world of several nodes; collective.
struct LinkRates {
  LinkCost alone, beside_compute;
  double compute_share = 0;  // that computing loses meanwhile
};

/// `compute` is a piece of what a rank computes, a millisecond or so long, over when it returns. Takes seconds; the slower the link, the more.
LinkRates measure_links(World& world, const std::function<void()>& compute);

}  // namespace aliquot
