#pragma once
// Whole blocks of eight-bit codes as any compiler vectorises them. Included by the sources of instruction sets that have
// nothing better, before update_loop.h.

#include "kernels/formats/dtype.h"
#include "optim/dynamic_code.h"

#pragma GCC visibility push(default)
namespace aliquot {
namespace {

template <typename Code>
ALIQUOT_HOST_DEVICE void decode_block(float* __restrict values, const uint8_t* __restrict codes, float scale) {
  for (int64_t i = 0; i < kBlockElements; ++i) values[i] = Code::value(codes[i]) * scale;
}

template <typename Code>
ALIQUOT_HOST_DEVICE void encode_block(uint8_t* __restrict codes, const float* __restrict values,
                                      const float* __restrict rises, float inverse) {
  for (int64_t i = 0; i < kBlockElements; ++i) codes[i] = Code::of(values[i] * inverse, rises[i]);
}

}  // namespace
}  // namespace aliquot
#pragma GCC visibility pop
