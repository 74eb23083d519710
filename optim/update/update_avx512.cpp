// The host update for AVX-512 (F, BW, VL, DQ). Compiled with flags for these instruction sets, and called only if cpuid
// reports all of them.

#include <immintrin.h>

#include "optim/update/code_blocks_avx512.h"
#include "optim/update/update_runs.h"

namespace aliquot {
namespace {

struct Avx512Blocks {
  static void stream(uint16_t* to, const uint16_t* from) {
    constexpr int64_t kLanes = sizeof(__m512i) / sizeof *to;
    if (reinterpret_cast<uintptr_t>(to) % sizeof(__m512i) != 0) {
      __builtin_memcpy(to, from, kBlockElements * sizeof *to);
      return;
    }
    for (int64_t i = 0; i < kBlockElements; i += kLanes) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), *reinterpret_cast<const __m512i*>(from + i));
    }
  }

  static void end_stream() { _mm_sfence(); }

  template <typename Code>
  [[gnu::always_inline]] static void decode(float* values, const uint8_t* codes, float scale) {
    decode_block<Code>(values, codes, scale);
  }
  template <typename Code>
  [[gnu::always_inline]] static void encode(uint8_t* codes, const float* values, const float* rises, float inverse) {
    encode_block<Code>(codes, values, rises, inverse);
  }
};

}  // namespace

const UpdateRuns& update_runs_avx512() { return kBuiltInUpdateRuns<Avx512Blocks>; }

}  // namespace aliquot
