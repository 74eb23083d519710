#pragma once
// What one rank's device does in a second while all ranks of a world are at work.

#include <cstdint>

#include "engine/cost/simulate.h"
#include "sharding/world.h"

namespace aliquot {

/// How much is done at once: so much that starting it does not show.
struct MeasuredSizes {
  int64_t elements;              // of arrays: far more than caches hold
  int64_t rows, columns, depth;  // of a product: no more elements than an array has, each
  int repeats;                   // of copies, updates and products between two looks at the clock
  int rounds;                    // of which the best counts

  static MeasuredSizes of(DeviceKind device);
};

/// Collective; needs seconds, and five arrays of memory. Products are fp32 on hosts, bf16 on GPUs. What was not measured is as
/// typical machines have it. Throws UnavailableError where memory is missing.
CostModel measure_rank(World& world, const MeasuredSizes& sizes);

}  // namespace aliquot
