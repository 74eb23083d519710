#pragma once
// Reductions of values in host memory, in the same order in every world.

#include <span>

#include "sharding/comm/combine_in_tree.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

inline double combine(Reduction reduction, double a, double b) {
  switch (reduction) {
    case Reduction::kSum: return a + b;
    case Reduction::kMax: return a >= b || a != a ? a : b;  // NaN if a or b is NaN
    case Reduction::kMin: return a <= b || a != a ? a : b;
  }
  return a;
}

/// Sets values[i] to the reduction of value i over all ranks. `of(rank)` returns a pointer to the values of that rank.
template <typename Of>
void reduce_in_tree(std::span<double> values, int rank_count, Reduction reduction, Of of) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = combine_in_tree<double>(
        rank_count, [&](int r) { return of(r)[i]; },
        [reduction](double a, double b) { return combine(reduction, a, b); });
  }
}

}  // namespace aliquot
