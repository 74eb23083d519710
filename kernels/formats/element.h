#pragma once
// The floating-point types that loops compute with, as types: how an element is stored, and its way to fp32 and back.

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
