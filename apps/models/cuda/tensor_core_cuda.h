#pragma once
// Tensor cores' products of 16-bit matrices, a warp at a time (PTX mma.m16n8k16 and ldmatrix). For *.cu files; tests put a
// simulated one in its stead.

#include <cstdint>
#include <type_traits>

#include "kernels/formats/element.h"

namespace aliquot::cuda {

/// A warp's 16 x 8 of fp32. A lane has rows lane / 4 and that + 8, columns 2 (lane % 4) and the next: {row, row, row + 8, row + 8}.
using Sums = float[4];
/// Its 16 x 16 on the left of a product: pairs of columns as for Sums, of columns 0 to 7 in words 0 and 1, of 8 to 15 in 2 and 3.
using LeftWords = uint32_t[4];

/// sums += left x right. `right` is 16 x 8: a lane has column lane / 4, rows 2 (lane % 4) and the next, and those 8 below.
template <class Element>
__device__ inline void multiply_add(Sums& sums, const LeftWords& left, uint32_t right_low, uint32_t right_high) {
  if constexpr (std::is_same_v<Element, Bf16Element>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_low), "r"(right_high));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_low), "r"(right_high));
  }
}

/// Four 8 x 8 matrices from shared memory. Lanes 0 to 7 say where the rows of the first lie, 8 to 15 those of the second, and
/// so on, each 16 bytes, aligned to that. A lane gets of each the elements 2 (lane % 4) and the next of row lane / 4.
__device__ inline void load_matrices(uint32_t (&words)[4], const uint16_t* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at)
               : "memory");
}
/// The same of the transposed matrices.
__device__ inline void load_matrices_transposed(uint32_t (&words)[4], const uint16_t* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at)
               : "memory");
}

}  // namespace aliquot::cuda
