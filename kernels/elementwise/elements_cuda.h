#pragma once
// Converts Values of runtime type to pointers of a compile-time type. Use it in *.cu files only.

#include <cmath>
#include <cstdint>

#include "kernels/device/launch_cuda.h"
#include "kernels/formats/element.h"
#include "kernels/formats/values.h"

namespace aliquot::cuda {

/// Calls body with the Element type of fp32, bf16 or fp16.
template <class Body>
void as_element(DType type, Body&& body) {
  if (type == DType::kFloat32) return body(Fp32Element{});
  if (type == DType::kFloat16) return body(Fp16Element{});
  body(Bf16Element{});
}

template <class Element>
auto* data_as(const Values& values, Element) {
  return static_cast<typename Element::Storage*>(values.data);
}
template <class Element>
const auto* data_as(const ConstValues& values, Element) {
  return static_cast<const typename Element::Storage*>(values.data);
}

/// Loads kCount elements and converts them to fp32.
template <class Element, int kCount>
__device__ Pack<float, kCount> load_floats(const typename Element::Storage* at) {
  const auto pack = load_pack<kCount>(at);
  Pack<float, kCount> result;
  for (int k = 0; k < kCount; ++k) result.lane[k] = Element::load(pack.lane[k]);
  return result;
}
/// Converts kCount elements and stores them in global memory.
template <class Element, int kCount>
__device__ void store_floats(typename Element::Storage* at, const Pack<float, kCount>& values) {
  Pack<typename Element::Storage, kCount> pack;
  for (int k = 0; k < kCount; ++k) pack.lane[k] = Element::store(values.lane[k]);
  store_global_pack(at, pack);
}

/// The sum over a group of kLaneCount neighboring lanes, by default the warp. All lanes of a group get the same bits.
template <int kLaneCount = 32>
__device__ float sum_of_lanes(float value) {
  for (int apart = kLaneCount / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}
template <int kLaneCount = 32>
__device__ float max_of_lanes(float value) {
  for (int apart = kLaneCount / 2; apart > 0; apart /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
  }
  return value;
}

}  // namespace aliquot::cuda
