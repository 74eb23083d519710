// The CUDA kernels copy, fill, scale, add and axpy.
#include "kernels/device/launch_cuda.h"
#include "kernels/elementwise/host_loops_tables.h"
#include "kernels/elementwise/kernels_cuda.h"

namespace aliquot::cuda {
namespace {

template <class T>
struct Fill {
  static constexpr int kElements = kLoadElements<T>;
  T* to;
  T value;
  template <int kCount>
  __device__ void at(int64_t i) const {
    Pack<T, kCount> pack;
    for (T& lane : pack.lane) lane = value;
    store_global_pack(to + i, pack);
  }
};

struct Scale {
  float* x;
  float factor;
  template <int kCount>
  __device__ void at(int64_t i) const {
    auto pack = load_pack<kCount>(x + i);
    for (float& lane : pack.lane) lane *= factor;
    store_global_pack(x + i, pack);
  }
};

struct Add {
  float* to;
  const float* from;
  template <int kCount>
  __device__ void at(int64_t i) const {
    auto sum = load_pack<kCount>(to + i);
    const auto pack = load_pack<kCount>(from + i);
    for (int k = 0; k < kCount; ++k) sum.lane[k] += pack.lane[k];
    store_global_pack(to + i, sum);
  }
};

// Compiled with --fmad=false, like all CUDA code here, so the product is rounded before the addition.
struct Axpy {
  float* y;
  float a;
  const float* x;
  template <int kCount>
  __device__ void at(int64_t i) const {
    auto sum = load_pack<kCount>(y + i);
    const auto pack = load_pack<kCount>(x + i);
    for (int k = 0; k < kCount; ++k) sum.lane[k] += a * pack.lane[k];
    store_global_pack(y + i, sum);
  }
};

template <class T>
void fill_with(Stream& stream, void* to, uint64_t pattern, int64_t count) {
  auto* elements = static_cast<T*>(to);
  launch_elements(stream, "fill", count, Fill<T>{elements, static_cast<T>(pattern)}, elements);
}

}  // namespace

void copy(Stream& stream, void* to, const void* from, int64_t size_bytes) {
  if (size_bytes <= 0) return;
  const cudaStream_t queue = cuda_stream(stream);
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(size_bytes), cudaMemcpyDefault, queue),
        "copying GPU memory");
}

void fill(Stream& stream, void* to, DType dtype, float value, int64_t count) {
  if (count <= 0) return;
  const uint64_t pattern = fill_pattern(dtype, value), byte = pattern & 0xff;
  if (pattern == byte * 0x0101010101010101u) {
    const cudaStream_t queue = cuda_stream(stream);
    const auto size_bytes = static_cast<std::size_t>(count * element_bytes(dtype));
    return check(cudaMemsetAsync(to, static_cast<int>(byte), size_bytes, queue), "filling GPU memory");
  }
  switch (element_bytes(dtype)) {
    case 2: return fill_with<uint16_t>(stream, to, pattern, count);
    case 4: return fill_with<uint32_t>(stream, to, pattern, count);
    default: return fill_with<uint64_t>(stream, to, pattern, count);
  }
}

void scale(Stream& stream, float* x, float factor, int64_t count) {
  launch_elements(stream, "scale", count, Scale{x, factor}, x);
}

void add(Stream& stream, float* to, const float* from, int64_t count) {
  launch_elements(stream, "add", count, Add{to, from}, to, from);
}

void axpy(Stream& stream, float* y, float a, const float* x, int64_t count) {
  launch_elements(stream, "axpy", count, Axpy{y, a, x}, y, x);
}

}  // namespace aliquot::cuda
