// The host's update for AVX-512 (F, BW, VL, DQ). Compiled with those flags, entered only after cpuid.

#include <immintrin.h>

#include "optim/update_host.h"

namespace aliquot {
namespace {

void stream_block(uint16_t* to, const uint16_t* from) {
  constexpr int64_t kLanes = sizeof(__m512i) / sizeof *to;
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m512i) != 0) {
    __builtin_memcpy(to, from, kBlockElements * sizeof *to);
    return;
  }
  for (int64_t i = 0; i < kBlockElements; i += kLanes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), *reinterpret_cast<const __m512i*>(from + i));
  }
}

// Other threads see what was streamed only after this.
void stream_end() { _mm_sfence(); }

}  // namespace
}  // namespace aliquot

#include "optim/code_blocks_avx512.h"
#include "optim/update_runs.h"

namespace aliquot {

const UpdateRuns& update_runs_avx512() { return kRuns; }

}  // namespace aliquot
