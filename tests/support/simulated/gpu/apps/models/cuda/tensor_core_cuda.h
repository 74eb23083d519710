#pragma once
// Replaces apps/models/cuda/tensor_core_cuda.h on simulated GPUs. Computes the results of tensor core instructions lane
// by lane, as the PTX manual defines them.

#include <cmath>
#include <cstdint>

#include "kernels/formats/element.h"
#include "tests/support/simulated/simulated_cuda_grid.h"

namespace aliquot::cuda {

using Sums = float[4];
using LeftWords = uint32_t[4];

namespace simulated_words {

/// The elements of one lane's operands, in the order of its words. They are exchanged as float, because each lane uses
/// the elements of many lanes.
struct Operands {
  float left[4][2], right[2][2];
};

template <class Element>
void load_halves(float (&halves)[2], uint32_t word) {
  halves[0] = Element::load(static_cast<uint16_t>(word));
  halves[1] = Element::load(static_cast<uint16_t>(word >> 16));
}

}  // namespace simulated_words

template <class Element>
void multiply_add(Sums& sums, const LeftWords& left, uint32_t right_low, uint32_t right_high) {
  using simulated_words::Operands;
  Operands own;
  for (int i = 0; i < 4; ++i) simulated_words::load_halves<Element>(own.left[i], left[i]);
  simulated_words::load_halves<Element>(own.right[0], right_low);
  simulated_words::load_halves<Element>(own.right[1], right_high);
  static_assert(sizeof own <= simulated::kLaneBytes);
  const std::byte* all = simulated::exchange_in_warp(&own, sizeof own);
  const auto of = [&](int lane) { return reinterpret_cast<const Operands*>(all + lane * simulated::kLaneBytes); };
  const int lane = simulated::own_lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    for (int k = 0; k < 16; k += 2) {
      const float* a = of(row % 8 * 4 + k % 8 / 2)->left[row / 8 + 2 * (k / 8)];
      const float* b = of(column * 4 + k % 8 / 2)->right[k / 8];
      sums[i] += a[0] * b[0];
      sums[i] += a[1] * b[1];
    }
  }
}

namespace simulated_words {

inline void load(uint32_t (&words)[4], const uint16_t* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    std::fprintf(stderr, "ldmatrix of an address that is not aligned to 16 bytes\n");
    std::abort();
  }
  const std::byte* all = simulated::exchange_in_warp(&row, sizeof row);
  const int lane = simulated::own_lane();
  for (int m = 0; m < 4; ++m) {
    words[m] = 0;
    for (int half = 0; half < 2; ++half) {
      const int across = 2 * (lane % 4) + half, down = lane / 4;
      const uint16_t* from;
      std::memcpy(&from, all + (8 * m + (transposed ? across : down)) * simulated::kLaneBytes, sizeof from);
      words[m] |= static_cast<uint32_t>(from[transposed ? down : across]) << (16 * half);
    }
  }
}

}  // namespace simulated_words

template <class Element>
uint32_t round_pair(float low, float high) {
  return static_cast<uint32_t>(Element::store(low)) | static_cast<uint32_t>(Element::store(high)) << 16;
}

inline float approximate_exp2(float x) { return std::exp2(x); }

inline void load_matrices(uint32_t (&words)[4], const uint16_t* row) { simulated_words::load(words, row, false); }
inline void load_matrices_transposed(uint32_t (&words)[4], const uint16_t* row) {
  simulated_words::load(words, row, true);
}

}  // namespace aliquot::cuda
