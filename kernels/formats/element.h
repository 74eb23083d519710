#pragma once
// The floating-point formats as C++ types: Storage holds an element, and load() and store() convert it from and to
// fp32.

#include <cstdint>

#include "kernels/formats/float16.h"
#include "kernels/formats/host_device.h"

namespace aliquot {

struct Fp32Element {
  using Storage = float;
  ALIQUOT_HOST_DEVICE static float load(float x) { return x; }
  ALIQUOT_HOST_DEVICE static float store(float x) { return x; }
};

struct Bf16Element {
  using Storage = uint16_t;
  ALIQUOT_HOST_DEVICE static float load(uint16_t x) { return bf16_to_float(x); }
  ALIQUOT_HOST_DEVICE static uint16_t store(float x) { return float_to_bf16(x); }
};

struct Fp16Element {
  using Storage = uint16_t;
  ALIQUOT_HOST_DEVICE static float load(uint16_t x) { return fp16_to_float(x); }
  ALIQUOT_HOST_DEVICE static uint16_t store(float x) { return float_to_fp16(x); }
};

}  // namespace aliquot
