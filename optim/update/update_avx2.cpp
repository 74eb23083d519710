// The host update for AVX2. Compiled with AVX2 flags, and called only if cpuid reports AVX2.

#include <immintrin.h>

#include "optim/update/update_runs.h"

namespace aliquot {
namespace {

struct Avx2Blocks : PlainBlocks {
  static void stream(uint16_t* to, const uint16_t* from) {
    constexpr int64_t kLanes = sizeof(__m256i) / sizeof *to;
    if (reinterpret_cast<uintptr_t>(to) % sizeof(__m256i) != 0) {
      __builtin_memcpy(to, from, kBlockElements * sizeof *to);
      return;
    }
    for (int64_t i = 0; i < kBlockElements; i += kLanes) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), *reinterpret_cast<const __m256i*>(from + i));
    }
  }

  static void end_stream() { _mm_sfence(); }
};

}  // namespace

const UpdateRuns& update_runs_avx2() { return kBuiltInUpdateRuns<Avx2Blocks>; }

}  // namespace aliquot
