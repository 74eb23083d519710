#pragma once
// Element-wise loops over host memory on the calling thread, for the host's Kernels table, communicators and tests.
// There is one table for each instruction set. best_isa() selects the table to use.

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/elementwise/kernels.h"
#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The loops that kernels/elementwise/kernels.h describes, without streams, over one contiguous range. Every table
/// gives the same bits, except the payload of a NaN result, which depends on the compiler. The loops require the
/// default floating-point environment: round to nearest even, subnormals kept. An unsupported dtype throws
/// std::logic_error.
struct HostLoops {
  void (*copy)(void* to, const void* from, int64_t size_bytes);
  void (*fill)(void* to, DType, float value, int64_t count);
  void (*scale)(float* x, float factor, int64_t count);
  void (*add)(float* to, const float* from, int64_t count);
  void (*axpy)(float* y, float a, const float* x, int64_t count);
  void (*cast)(void* to, DType, const void* from, DType, int64_t count);
  void (*split)(uint16_t* high, int16_t* low, const float* master, int64_t count);
  void (*merge)(float* master, const uint16_t* high, const int16_t* low, int64_t count);
  /// Computes elements [begin, end) of the sum. `begin` must be a multiple of kBlockElements. There may be at most
  /// kMaxTreeSources sources.
  void (*sum_tree)(const TreeSum&, int64_t begin, int64_t end);
  void (*block_squares)(double* sums, const float* x, int64_t count);
  void (*block_largest)(double* values, const void* x, DType, int64_t count);
  void (*block_fixed_squares)(double* sums, const FixedSquares&);
  /// Returns the index of the first element that is not finite, or count.
  int64_t (*find_nonfinite)(const void* x, DType, int64_t count);
  /// digests[b] = a digest of bytes [b * block_bytes, (b + 1) * block_bytes) of `data`. The last block may be shorter,
  /// which has the same digest as a block that ends with zeros. `block_bytes` is a multiple of 4 and at most
  /// kMaxDigestBlockBytes. A change within one aligned 32-bit word of a block always changes its digest. See
  /// kernels/elementwise/block_digest.h.
  void (*block_digests)(uint64_t* digests, const void* data, int64_t block_bytes, int64_t size_bytes);
};

inline constexpr int64_t kMaxTreeSources = 4096;

/// Instruction sets. Each includes the ones before it.
enum class Isa : uint8_t { kPlain, kAvx2, kAvx512 };

/// Returns the name of the instruction set in ALIQUOT_ISA and Device::describe(): "plain", "avx2" or "avx512".
constexpr std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::kPlain: return "plain";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "unknown";
}

/// Returns the instruction sets that this processor supports, in ascending order. kPlain is always supported.
std::span<const Isa> available_isas();

/// Returns the highest available instruction set, or the one in the environment variable ALIQUOT_ISA if that is lower.
/// The variable is read once. Throws UsageError if its value is invalid.
Isa best_isa();

/// Returns the table of an instruction set. Throws std::logic_error if this processor does not support it.
const HostLoops& host_loops(Isa isa);

}  // namespace aliquot
#pragma GCC visibility pop
