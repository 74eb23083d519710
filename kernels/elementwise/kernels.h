#pragma once
// Every loop over elements, as one table that a device fills.

#include <cstdint>
#include <span>

#include "kernels/device/stream.h"
#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// What a sum over ranks reads and writes. Source i is `bases[i] + offset_bytes`; the bases, an array of the host, must
/// stay alive until the sum has run.
struct TreeSum {
  std::span<const std::byte* const> bases;
  int64_t offset_bytes = 0;
  DType from_dtype = DType::kFloat32;  // fp32, bf16 or fp16
  void* to = nullptr;                  // may be one of the sources, element for element
  DType to_dtype = DType::kFloat32;
  int64_t count = 0;
  float factor = 1.0f;              // the finished sum is multiplied by it, once, in fp32
  double* block_squares = nullptr;  // if set, gets block_squares() of the fp32 result, before it is rounded to to_dtype
};

/// Bytes of a part of `count` elements, whole blocks, that are encoded: one an element, then a scale (fp32) for each block.
constexpr int64_t encoded_bytes(int64_t count) {
  constexpr int64_t kAligned = 64;  // of every part, behind one another
  const int64_t bytes = count + count / kBlockElements * static_cast<int64_t>(sizeof(float));
  return (bytes + kAligned - 1) / kAligned * kAligned;
}

/// Parts of `count` elements each, whole blocks, behind one another, to as many encoded parts.
struct Encode {
  const void* from = nullptr;
  DType from_dtype = DType::kFloat32;  // fp32, bf16 or fp16
  std::byte* to = nullptr;
  /// If set, as many encoded parts: they are added to what is encoded, and become what encoding left of the sum; nothing, of
  /// a block that is not finite. At first, zeros.
  std::byte* carried = nullptr;
  int64_t part_count = 0, count = 0;
};

struct Decode {
  const std::byte* from = nullptr;
  void* to = nullptr;
  DType to_dtype = DType::kFloat32;
  int64_t part_count = 0, count = 0;
};

/// Enqueues loops on a stream of the device that the table came from. Pointers are that device's memory, need only the
/// alignment of their element, and must stay valid until the work has run; counts are elements; a count of 0 is no work.
/// Nothing allocates. All paths, plain, vector and CUDA, give the same bits, but for the payload of a NaN that arithmetic made.
struct Kernels {
  void (*copy)(Stream&, void* to, const void* from, int64_t size_bytes);
  /// As an integer: towards zero, the nearest that the type holds, 0 for NaN.
  void (*fill)(Stream&, void* to, DType, float value, int64_t count);
  void (*scale)(Stream&, float* x, float factor, int64_t count);            // x *= factor
  void (*add)(Stream&, float* to, const float* from, int64_t count);        // to += from
  void (*axpy)(Stream&, float* y, float a, const float* x, int64_t count);  // y += a * x, rounded twice
  /// Between fp32, bf16 and fp16 in any direction; to the nearest, ties to even, NaN stays NaN.
  void (*cast)(Stream&, void* to, DType, const void* from, DType, int64_t count);
  /// fp32 to its bf16 high half, rounded half up in magnitude, and the 16-bit remainder; merge is its exact inverse.
  /// `low` may be null in split: the cast from a master that is kept whole.
  void (*split)(Stream&, uint16_t* high, int16_t* low, const float* master, int64_t count);
  void (*merge)(Stream&, float* master, const uint16_t* high, const int16_t* low, int64_t count);
  /// The sources summed in the aligned binary tree over their index, partial sums in fp32.
  void (*sum_tree)(Stream&, const TreeSum&);
  /// sums[b] = the sum of squares of block b of x: within a block a halving tree in fp32, v[i] += v[i + h] for
  /// h = 128, 64, ..., 1, missing elements being zero, then widened. Not finite if any element is not.
  void (*block_squares)(Stream&, double* sums, const float* x, int64_t count);
  /// *first = the index of the first element that is not finite, or count.
  void (*find_nonfinite)(Stream&, int64_t* first, const void* x, DType, int64_t count);
  /// Each element as the nearest of 255 whole multiples of its block's largest magnitude / 127.
  void (*encode)(Stream&, const Encode&);
  void (*decode)(Stream&, const Decode&);
};

}  // namespace aliquot
#pragma GCC visibility pop
