#pragma once
// Tensor-core products of 16-bit matrices by one warp (PTX mma.m16n8k16 and ldmatrix), and instructions that prepare
// their operands. Use it in *.cu files only. Tests replace it with a simulation.

#include <cstdint>
#include <type_traits>

#include "kernels/formats/element.h"

namespace aliquot::cuda {

/// The elements of a warp's 16 x 8 fp32 matrix that one lane holds: (r, c), (r, c + 1), (r + 8, c) and (r + 8, c + 1),
/// with r = lane / 4 and c = 2 (lane % 4).
using Sums = float[4];
/// The elements of a product's 16 x 16 left operand that one lane holds, two 16-bit elements in each word. With r and c
/// as in Sums, word 0 has (r, c) and (r, c + 1), word 1 has (r + 8, c) and (r + 8, c + 1). Words 2 and 3 have the
/// elements eight columns to the right of words 0 and 1.
using LeftWords = uint32_t[4];

/// sums += left x right. `right` is 16 x 8. With r = 2 (lane % 4), a lane holds rows r and r + 1 of column lane / 4 in
/// `right_low`, and rows r + 8 and r + 9 in `right_high`.
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

/// Loads four 8 x 8 matrices from shared memory. Lanes 0 to 7 pass the addresses of the first matrix's rows, lanes 8 to
/// 15 those of the second, and so on. A row has 16 bytes and is aligned to 16 bytes. With c = 2 (lane % 4), a lane gets
/// elements c and c + 1 of row lane / 4 of each matrix.
__device__ inline void load_matrices(uint32_t (&words)[4], const uint16_t* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at)
               : "memory");
}
/// Like load_matrices(), but a lane gets elements c and c + 1 of column lane / 4 of each matrix.
__device__ inline void load_matrices_transposed(uint32_t (&words)[4], const uint16_t* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at)
               : "memory");
}

/// Rounds two values to 16 bits. The bits are those of Element::store(), except for NaN. The low half of the result has
/// `low`.
template <class Element>
__device__ inline uint32_t round_pair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<Element, Bf16Element>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

/// 2^x with a relative error of about 2^-22. Subnormal arguments and results are zero.
__device__ inline float approximate_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace aliquot::cuda
