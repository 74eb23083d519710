#pragma once
// The loops over elements on host memory, on the calling thread: what the host's Kernels table, the communicators and
// the tests share. One table per instruction set, chosen when the program starts.

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/elementwise/kernels.h"
#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Kernels (kernels/elementwise/kernels.h says what each does) without streams, over one contiguous range. Every table gives the
/// same bits, but for the payload of a NaN that arithmetic made: which of two NaN an addition keeps is the compiler's
/// choice. They assume the default floating-point environment: nearest-even, subnormals kept. A dtype that a loop does
/// not take throws std::logic_error.
struct HostLoops {
  void (*copy)(void* to, const void* from, int64_t size_bytes);
  void (*fill)(void* to, DType, float value, int64_t count);
  void (*scale)(float* x, float factor, int64_t count);
  void (*add)(float* to, const float* from, int64_t count);
  void (*axpy)(float* y, float a, const float* x, int64_t count);
  void (*cast)(void* to, DType, const void* from, DType, int64_t count);
  void (*split)(uint16_t* high, int16_t* low, const float* master, int64_t count);
  void (*merge)(float* master, const uint16_t* high, const int16_t* low, int64_t count);
  /// Elements [begin, end) of the sum; begin is a multiple of kBlockElements. At most kMaxTreeSources sources.
  void (*sum_tree)(const TreeSum&, int64_t begin, int64_t end);
  void (*block_squares)(double* sums, const float* x, int64_t count);
  /// The index of the first element that is not finite, or count.
  int64_t (*find_nonfinite)(const void* x, DType, int64_t count);
};

inline constexpr int64_t kMaxTreeSources = 4096;

/// Instruction sets, each including those before it.
enum class Isa : uint8_t { kPlain, kAvx2, kAvx512 };

/// The name that ALIQUOT_ISA takes and describe() prints: "plain", "avx2", "avx512".
constexpr std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::kPlain: return "plain";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "unknown";
}

/// What this processor runs, the lowest first; kPlain always.
std::span<const Isa> available_isas();

/// The highest of them, or what the environment variable ALIQUOT_ISA names if that is lower; read once.
/// Throws UsageError if it names none.
Isa best_isa();

/// The table of an available instruction set; std::logic_error otherwise.
const HostLoops& host_loops(Isa isa);

}  // namespace aliquot
#pragma GCC visibility pop
