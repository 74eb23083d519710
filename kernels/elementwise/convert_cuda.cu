// The CUDA kernels cast, split and merge.
#include <stdexcept>
#include <string>

#include "kernels/device/launch_cuda.h"
#include "kernels/elementwise/kernels_cuda.h"
#include "kernels/formats/element.h"
#include "kernels/formats/split_master.h"

namespace aliquot::cuda {
namespace {

template <class To, class From>
struct Cast {
  static constexpr int kElements = kLoadElements<uint16_t>;  // at least one type has 16 bits
  typename To::Storage* to;
  const typename From::Storage* from;
  template <int kCount>
  __device__ void at(int64_t i) const {
    const auto pack = load_pack<kCount>(from + i);
    Pack<typename To::Storage, kCount> result;
    for (int k = 0; k < kCount; ++k) result.lane[k] = To::store(From::load(pack.lane[k]));
    store_global_pack(to + i, result);
  }
};

struct SplitHigh {
  static constexpr int kElements = kLoadElements<uint16_t>;
  uint16_t* high;
  const float* master;
  template <int kCount>
  __device__ void at(int64_t i) const {
    const auto pack = load_pack<kCount>(master + i);
    Pack<uint16_t, kCount> result;
    for (int k = 0; k < kCount; ++k) result.lane[k] = master_high(pack.lane[k]);
    store_global_pack(high + i, result);
  }
};

struct SplitBoth {
  static constexpr int kElements = kLoadElements<uint16_t>;
  uint16_t* high;
  int16_t* low;
  const float* master;
  template <int kCount>
  __device__ void at(int64_t i) const {
    const auto pack = load_pack<kCount>(master + i);
    Pack<uint16_t, kCount> top;
    Pack<int16_t, kCount> rest;
    for (int k = 0; k < kCount; ++k) {
      top.lane[k] = master_high(pack.lane[k]);
      rest.lane[k] = master_low(pack.lane[k]);
    }
    store_global_pack(high + i, top);
    store_global_pack(low + i, rest);
  }
};

struct Merge {
  static constexpr int kElements = kLoadElements<uint16_t>;
  float* master;
  const uint16_t* high;
  const int16_t* low;
  template <int kCount>
  __device__ void at(int64_t i) const {
    const auto top = load_pack<kCount>(high + i);
    const auto rest = load_pack<kCount>(low + i);
    Pack<float, kCount> result;
    for (int k = 0; k < kCount; ++k) result.lane[k] = merge_master(top.lane[k], rest.lane[k]);
    store_global_pack(master + i, result);
  }
};

[[noreturn]] void throw_unsupported_dtype(DType dtype) {
  throw std::logic_error("cast does not support dtype " + std::string(name(dtype)));
}

template <class To, class From>
void cast_elements(Stream& stream, void* to, const void* from, int64_t count) {
  auto* out = static_cast<typename To::Storage*>(to);
  const auto* in = static_cast<const typename From::Storage*>(from);
  launch_elements(stream, "cast", count, Cast<To, From>{out, in}, out, in);
}

}  // namespace

void cast(Stream& stream, void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
  for (const DType dtype : {to_dtype, from_dtype}) {
    if (dtype != DType::kFloat32 && dtype != DType::kBFloat16 && dtype != DType::kFloat16)
      throw_unsupported_dtype(dtype);
  }
  if (to_dtype == from_dtype) return copy(stream, to, from, count * element_bytes(to_dtype));
  if (from_dtype == DType::kFloat32) {
    const auto elements = to_dtype == DType::kBFloat16 ? cast_elements<Bf16Element, Fp32Element>
                                                       : cast_elements<Fp16Element, Fp32Element>;
    return elements(stream, to, from, count);
  }
  if (from_dtype == DType::kBFloat16) {
    const auto elements =
        to_dtype == DType::kFloat32 ? cast_elements<Fp32Element, Bf16Element> : cast_elements<Fp16Element, Bf16Element>;
    return elements(stream, to, from, count);
  }
  const auto elements =
      to_dtype == DType::kFloat32 ? cast_elements<Fp32Element, Fp16Element> : cast_elements<Bf16Element, Fp16Element>;
  elements(stream, to, from, count);
}

void split(Stream& stream, uint16_t* high, int16_t* low, const float* master, int64_t count) {
  if (low == nullptr) return launch_elements(stream, "split", count, SplitHigh{high, master}, high, master);
  launch_elements(stream, "split", count, SplitBoth{high, low, master}, high, low, master);
}

void merge(Stream& stream, float* master, const uint16_t* high, const int16_t* low, int64_t count) {
  launch_elements(stream, "merge", count, Merge{master, high, low}, master, high, low);
}

}  // namespace aliquot::cuda
