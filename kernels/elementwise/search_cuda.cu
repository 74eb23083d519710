// The CUDA kernels block_squares and find_nonfinite.
#include <stdexcept>
#include <string>

#include "kernels/device/launch_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/kernels_cuda.h"

namespace aliquot::cuda {
namespace {

// Loads four elements from `first` on. Those with index >= count are zero.
__device__ Pack<float, kPackElements> load_partial(const float* x, int64_t first, int64_t count, bool aligned) {
  if (aligned && first + kPackElements <= count) return load_pack<kPackElements>(x + first);
  Pack<float, kPackElements> pack = {};
  for (int k = 0; k < kPackElements; ++k) {
    if (first + k < count) pack.lane[k] = x[first + k];
  }
  return pack;
}

__global__ void sum_block_squares(double* sums, const float* x, int64_t count, bool aligned) {
  const int64_t block_count = (count + kBlockElements - 1) / kBlockElements;
  for (int64_t block = launch_warp(); block < block_count; block += launch_warp_stride()) {
    const int64_t first = block * kBlockElements + kPackElements * warp_lane();
    BlockPart part;
    part.low = load_partial(x, first, count, aligned);
    part.high = load_partial(x, first + kHalfBlockElements, count, aligned);
    const float sum = block_square_sum(part, first, count);
    if (warp_lane() == 0) sums[block] = static_cast<double>(sum);
  }
}

__global__ void set_count(int64_t* to, int64_t count) { *to = count; }

// Sets *first to the smallest index of a non-finite element that any thread has found.
template <class Bits>
struct FindNonfinite {
  const Bits* x;
  Bits exponent;
  unsigned long long* first;
  template <int kCount>
  __device__ void at(int64_t i) const {
    const auto pack = load_pack<kCount>(x + i);
    for (int k = 0; k < kCount; ++k) {
      if ((pack.lane[k] & exponent) != exponent) continue;
      const auto index = static_cast<unsigned long long>(i + k);
      // Without this check, an array full of NaN would need one atomic operation for each element.
      if (index < *static_cast<volatile unsigned long long*>(first)) atomicMin(first, index);
    }
  }
};

template <class Bits>
void launch_find_nonfinite(Stream& stream, int64_t* first, const void* x, Bits exponent, int64_t count) {
  const auto* elements = static_cast<const Bits*>(x);
  auto* least = reinterpret_cast<unsigned long long*>(first);
  launch_elements(stream, "find_nonfinite", count, FindNonfinite<Bits>{elements, exponent, least}, elements);
}

}  // namespace

void block_squares(Stream& stream, double* sums, const float* x, int64_t count) {
  if (count <= 0) return;
  const int64_t block_count = (count + kBlockElements - 1) / kBlockElements;
  const bool aligned = elements_before_packs(x) == 0;
  start_kernel(stream, "block_squares", launch_grid(block_count * kLanesPerWarp), sum_block_squares, sums, x, count,
               aligned);
}

void find_nonfinite(Stream& stream, int64_t* first, const void* x, DType dtype, int64_t count) {
  if (dtype == DType::kInt16 || dtype == DType::kUInt8) {
    throw std::logic_error("find_nonfinite does not support dtype " + std::string(name(dtype)));
  }
  start_kernel(stream, "find_nonfinite", {1, 1}, set_count, first, count);
  switch (dtype) {
    case DType::kFloat64: return launch_find_nonfinite<uint64_t>(stream, first, x, 0x7ff0000000000000u, count);
    case DType::kFloat32: return launch_find_nonfinite<uint32_t>(stream, first, x, 0x7f800000u, count);
    case DType::kBFloat16: return launch_find_nonfinite<uint16_t>(stream, first, x, 0x7f80u, count);
    default: return launch_find_nonfinite<uint16_t>(stream, first, x, 0x7c00u, count);
  }
}

}  // namespace aliquot::cuda
