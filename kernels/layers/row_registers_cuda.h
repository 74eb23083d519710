#pragma once
// Rows that the lanes of a warp hold in registers. For *.cu files.

#include <cstdint>

#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"

namespace aliquot::cuda {

/// Calls body(p, column) for each pack p of this lane. A lane has the packs lane, lane + 32, ... of a row, which are at
/// most kPacks. The row has `width` elements, and `column` is the index of the pack's first element.
template <int kPacks, class Body>
__device__ void for_lane_packs(int width, const Body& body) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = (p * kLanesPerWarp + warp_lane()) * kPackElements;
    if (column < width) body(p, column);
  }
}

/// The elements of a row that one lane holds.
template <int kPacks>
using LaneRow = Pack<float, kPackElements>[kPacks];

/// The sum of term(p, k) over the row, in fp32, for element k of pack p. All lanes of the warp call it, and all get it.
template <int kPacks, class Term>
__device__ float sum_of_lane_packs(int width, const Term& term) {
  float sum = 0.0f;
  for_lane_packs<kPacks>(width, [&](int p, int) {
#pragma unroll
    for (int k = 0; k < kPackElements; ++k) sum += term(p, k);
  });
  return sum_of_lanes(sum);
}

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
