// The host's update for AVX2. Compiled with those flags, entered only after cpuid.

#include <immintrin.h>

#include "optim/update_host.h"

namespace aliquot {
namespace {

void stream_block(uint16_t* to, const uint16_t* from) {
  constexpr int64_t kLanes = sizeof(__m256i) / sizeof *to;
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m256i) != 0) {
    __builtin_memcpy(to, from, kBlockElements * sizeof *to);
    return;
  }
  for (int64_t i = 0; i < kBlockElements; i += kLanes) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), *reinterpret_cast<const __m256i*>(from + i));
  }
}

// Other threads see what was streamed only after this.
void stream_end() { _mm_sfence(); }

}  // namespace
}  // namespace aliquot

#include "optim/code_blocks.h"
#include "optim/update_runs.h"

namespace aliquot {

const UpdateRuns& update_runs_avx2() { return kRuns; }

}  // namespace aliquot
