#pragma once
// Operations on whole blocks of the working copy and of 8-bit codes, as loops that compilers vectorise. This struct is
// the default for the template parameter `Blocks` of update_loop.h. Source files for one instruction set may use a
// faster struct.

#include <cstdint>

#include "kernels/formats/dtype.h"
#include "kernels/formats/host_device.h"
#include "optim/update/dynamic_code.h"

#pragma GCC visibility push(default)
namespace aliquot {
namespace {

struct PlainBlocks {
  /// Writes a block of the working copy. Versions for an instruction set use non-temporal stores.
  ALIQUOT_HOST_INLINE static void stream(uint16_t* to, const uint16_t* from) {
    __builtin_memcpy(to, from, kBlockElements * sizeof *to);
  }
  /// Must be called after the last stream(). Other threads then see the writes of stream() before later writes.
  ALIQUOT_HOST_INLINE static void end_stream() {}

  template <typename Code>
  ALIQUOT_HOST_INLINE static void decode(float* __restrict values, const uint8_t* __restrict codes, float scale) {
    for (int64_t i = 0; i < kBlockElements; ++i) values[i] = Code::value(codes[i]) * scale;
  }
  template <typename Code>
  ALIQUOT_HOST_INLINE static void encode(uint8_t* __restrict codes, const float* __restrict values,
                                         const float* __restrict rises, float inverse) {
    for (int64_t i = 0; i < kBlockElements; ++i) codes[i] = Code::of(values[i] * inverse, rises[i]);
  }
};

}  // namespace
}  // namespace aliquot
#pragma GCC visibility pop
