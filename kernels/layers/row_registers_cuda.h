#pragma once
// Rows that the lanes of a warp hold in registers. For *.cu files.

#include <algorithm>
#include <cstdint>

#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"

namespace aliquot::cuda {

/// The elements of a row that one lane holds, in packs of kPackElements. The lane has packs lane, lane + 32, ... of the
/// row, and at most kPacks of them.
template <int kPacks>
struct LaneRow {
  Pack<float, kPackElements> packs[kPacks];

  /// Calls body(pack, column) for each pack of this lane. `column` is that of the pack's first element in the row.
  template <class Body>
  __device__ void for_packs(int width, const Body& body) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = (p * kLanesPerWarp + warp_lane()) * kPackElements;
      if (column < width) body(packs[p], column);
    }
  }
  /// The sum of term(element, column) over the row, in fp32. All lanes of the warp call it and get the same sum.
  template <class Term>
  __device__ float sum(int width, const Term& term) {
    float sum = 0.0f;
    for_packs(width, [&](Pack<float, kPackElements>& pack, int column) {
#pragma unroll
      for (int k = 0; k < kPackElements; ++k) sum += term(pack.lane[k], column + k);
    });
    return sum_of_lanes(sum);
  }
};

/// Whether rows of `width` elements can be loaded as packs from each address. Null is allowed.
template <class... T>
bool rows_have_packs(int64_t width, const T*... at) {
  return width % kPackElements == 0 && ((reinterpret_cast<uintptr_t>(at) % (kPackElements * sizeof(T)) == 0) && ...);
}

/// Calls use.operator()<kPacks>() with the smallest kPacks of the list for which a LaneRow can hold a row of `width`
/// elements. Returns false if none can.
template <int... kPacks, class Use>
bool with_lane_row(int64_t width, const Use& use) {
  const int64_t packs = (width + kPackElements * kLanesPerWarp - 1) / (kPackElements * kLanesPerWarp);
  return ((packs <= kPacks ? (use.template operator()<kPacks>(), true) : false) || ...);
}

}  // namespace aliquot::cuda
