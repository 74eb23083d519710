#pragma once
// The table of element-wise kernels that each device implements.

#include <cstdint>
#include <span>

#include "kernels/device/stream.h"
#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The arguments of a sum over ranks. Source i is at `bases[i] + offset_bytes`. The array of bases is in host memory
/// and must exist until the sum has run.
struct TreeSum {
  std::span<const std::byte* const> bases;
  int64_t offset_bytes = 0;
  DType from_dtype = DType::kFloat32;  // fp32, bf16 or fp16
  void* to = nullptr;                  // may be one of the sources
  DType to_dtype = DType::kFloat32;
  int64_t count = 0;
  float factor = 1.0f;  // multiplies the complete sum, in fp32
  // if set, receives block_squares() of the fp32 result before it is rounded to to_dtype
  double* block_squares = nullptr;
};

/// Returns the size of an encoded part: one byte for each of its `count` elements, then an fp32 scale for each block.
/// `count` must be a multiple of kBlockElements.
constexpr int64_t encoded_bytes(int64_t count) {
  constexpr int64_t kAligned = 64;  // alignment of consecutive parts
  const int64_t bytes = count + count / kBlockElements * static_cast<int64_t>(sizeof(float));
  return (bytes + kAligned - 1) / kAligned * kAligned;
}

/// The arguments of encode(), which quantizes `part_count` consecutive parts of `count` elements each. `count` must be
/// a multiple of kBlockElements.
struct Encode {
  const void* from = nullptr;
  DType from_dtype = DType::kFloat32;  // fp32, bf16 or fp16
  std::byte* to = nullptr;
  /// If set, the error-feedback residual as encoded parts. It is added before encoding and replaced by the new rounding
  /// error, which is zero for a block with a non-finite element. All its bytes must be zero before the first call.
  std::byte* carried = nullptr;
  int64_t part_count = 0, count = 0;
};

struct Decode {
  const std::byte* from = nullptr;
  void* to = nullptr;
  DType to_dtype = DType::kFloat32;
  int64_t part_count = 0, count = 0;
};

/// The arguments of block_fixed_squares(). `scale` must be a power of two, and all squares times `scale` must be less
/// than 1.
struct FixedSquares {
  const void* x = nullptr;
  DType dtype = DType::kFloat32;  // fp32 or bf16
  int64_t count = 0;
  double scale = 1;
  int digit = 0;
};
inline constexpr int kFixedDigitBits = 31;

/// The arguments of block_digests(), which computes the digest of each block of `block_bytes` bytes. A last block with
/// fewer bytes has the digest of a block that ends with zeros. kernels/elementwise/block_digest.h says what a digest
/// is.
struct BlockDigests {
  uint64_t* digests = nullptr;  // one for each block
  const void* data = nullptr;
  int64_t block_bytes = 0;  // a multiple of 4, at most kMaxDigestBlockBytes
  int64_t size_bytes = 0;   // of all blocks
  /// Stores digests[b] * kDigestChainFactor + digest instead of the digest, so that the results depend on all data that
  /// was added, and on its order.
  bool chains = false;
};

/// Consecutive leaves of a tree, and the place of their sum. All places are indices in RunSums::values.
struct LeafRun {
  int64_t first = 0, count = 0;  // count: 1 or more
  int64_t sum = 0;
};

/// The arguments of sum_runs(). `values` has the leaves and receives the sums. The list of runs must exist until the
/// work has run.
struct RunSums {
  double* values = nullptr;
  const LeafRun* runs = nullptr;
  int64_t run_count = 0;
};

/// Enqueues loops on a stream of the device that owns the table. Pointers are to memory of that device, need only the
/// alignment of their elements, and must stay valid until the work has run. Counts are numbers of elements and may be
/// 0. No function allocates memory. Plain, vector and CUDA code give the same bits, except the payload of a NaN result.
struct Kernels {
  void (*copy)(Stream&, void* to, const void* from, int64_t size_bytes);
  /// For integer types, `value` is rounded towards zero and clamped to the range of the type. NaN becomes 0.
  void (*fill)(Stream&, void* to, DType, float value, int64_t count);
  void (*scale)(Stream&, float* x, float factor, int64_t count);            // x *= factor
  void (*add)(Stream&, float* to, const float* from, int64_t count);        // to += from
  void (*axpy)(Stream&, float* y, float a, const float* x, int64_t count);  // y += a * x, without fused multiply-add
  /// Converts between fp32, bf16 and fp16. Rounds to nearest, ties to even. NaN stays NaN.
  void (*cast)(Stream&, void* to, DType, const void* from, DType, int64_t count);
  /// Splits fp32 into a bf16 high half, rounded to nearest with ties away from zero, and a 16-bit remainder. merge() is
  /// the exact inverse. If `low` is null, only the high half is stored, as for the working copy of an fp32 master.
  void (*split)(Stream&, uint16_t* high, int16_t* low, const float* master, int64_t count);
  void (*merge)(Stream&, float* master, const uint16_t* high, const int16_t* low, int64_t count);
  /// Adds the sources in a binary tree over their index, with partial sums in fp32. A subtree of 2^n sources begins at
  /// a multiple of 2^n.
  void (*sum_tree)(Stream&, const TreeSum&);
  /// sums[b] = the sum of squares of block b of x. A halving tree in fp32 computes it: v[i] += v[i + h] for h = 128,
  /// 64, ..., 1, with zeros for missing elements. The sum is not finite if an element is not.
  void (*block_squares)(Stream&, double* sums, const float* x, int64_t count);
  /// values[b] = the largest magnitude in block b of x, or a NaN if an element is one. x is fp32 or bf16.
  void (*block_largest)(Stream&, double* values, const void* x, DType, int64_t count);
  /// sums[b] = the exact sum over block b of digit `digit` of the scaled squares. The first digit of a fraction is its
  /// first kFixedDigitBits bits.
  void (*block_fixed_squares)(Stream&, double* sums, const FixedSquares&);
  /// Stores the sum of the leaves of each run. A binary tree in double computes it. Several leaves are divided into a
  /// left part and the rest: the left part has as many leaves as the largest power of two that is less than the count.
  /// No sum may be a leaf or the sum of another run of the same call.
  void (*sum_runs)(Stream&, const RunSums&);
  /// Sets *first to the index of the first element that is not finite, or to count.
  void (*find_nonfinite)(Stream&, int64_t* first, const void* x, DType, int64_t count);
  /// Quantizes each element to an integer in [-127, 127] times a scale, which is the block's largest magnitude / 127.
  void (*encode)(Stream&, const Encode&);
  void (*decode)(Stream&, const Decode&);
  void (*block_digests)(Stream&, const BlockDigests&);
  /// Computes the digests of all blocks of kMaxDigestBlockBytes bytes, and adds them in order to *sum, which begins
  /// with 0: *sum = *sum * kDigestChainFactor + digest. On a GPU, `sum` may be in pinned host memory, and the host must
  /// not access it before the work has run.
  void (*digest_sum)(Stream&, uint64_t* sum, const void* data, int64_t size_bytes);
};

}  // namespace aliquot
#pragma GCC visibility pop
