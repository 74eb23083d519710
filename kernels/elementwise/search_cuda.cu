// The CUDA kernels block_squares, block_largest, block_fixed_squares and find_nonfinite.
#include <stdexcept>
#include <string>

#include "kernels/device/launch_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"
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

// One warp computes the value of a block. `of` computes the value of an element, and `join` combines two values in any
// order.
template <class E, class Value, class Join>
__device__ double fold_block(const typename E::Storage* x, int64_t count, const Value& of, const Join& join) {
  double folded = 0.0;
  for (int64_t i = warp_lane(); i < kBlockElements && i < count; i += kLanesPerWarp)
    folded = join(folded, of(E::load(x[i])));
  for (int apart = kLanesPerWarp / 2; apart > 0; apart /= 2)
    folded = join(folded, __shfl_xor_sync(0xffffffffu, folded, apart));
  return folded;
}

template <class E>
__global__ void find_block_largest(double* values, const typename E::Storage* x, int64_t count) {
  const int64_t block_count = (count + kBlockElements - 1) / kBlockElements;
  for (int64_t block = launch_warp(); block < block_count; block += launch_warp_stride()) {
    const int64_t first = block * kBlockElements;
    const double largest = fold_block<E>(
        x + first, count - first, [](float element) { return static_cast<double>(fabsf(element)); },
        [](double a, double b) { return a >= b || a != a ? a : b; });
    if (warp_lane() == 0) values[block] = largest;
  }
}

template <class E>
__global__ void sum_block_fixed_squares(double* sums, const FixedSquares a) {
  constexpr double kDigit = int64_t{1} << kFixedDigitBits;
  const auto* x = static_cast<const typename E::Storage*>(a.x);
  const int64_t block_count = (a.count + kBlockElements - 1) / kBlockElements;
  for (int64_t block = launch_warp(); block < block_count; block += launch_warp_stride()) {
    const int64_t begin = block * kBlockElements;
    const auto digit = [&](float element) {
      const auto wide = static_cast<double>(element);
      const double first = wide * wide * a.scale * kDigit;
      const double first_digit = static_cast<double>(static_cast<int32_t>(first));
      return a.digit == 0 ? first_digit : static_cast<double>(static_cast<int32_t>((first - first_digit) * kDigit));
    };
    const double sum =
        fold_block<E>(x + begin, a.count - begin, digit, [](double left, double right) { return left + right; });
    if (warp_lane() == 0) sums[block] = sum;
  }
}

template <class Launch>
void with_gradient_type(const char* kernel, DType dtype, const Launch& launch) {
  if (dtype == DType::kFloat32) return launch(Fp32Element{});
  if (dtype == DType::kBFloat16) return launch(Bf16Element{});
  throw std::logic_error(std::string(kernel) + " does not support dtype " + std::string(name(dtype)));
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

void block_largest(Stream& stream, double* values, const void* x, DType dtype, int64_t count) {
  if (count <= 0) return;
  const int64_t block_count = (count + kBlockElements - 1) / kBlockElements;
  with_gradient_type("block_largest", dtype, [&]<class E>(E) {
    start_kernel(stream, "block_largest", launch_grid(block_count * kLanesPerWarp), find_block_largest<E>, values,
                 static_cast<const typename E::Storage*>(x), count);
  });
}

void block_fixed_squares(Stream& stream, double* sums, const FixedSquares& args) {
  if (args.count <= 0) return;
  const int64_t block_count = (args.count + kBlockElements - 1) / kBlockElements;
  with_gradient_type("block_fixed_squares", args.dtype, [&]<class E>(E) {
    start_kernel(stream, "block_fixed_squares", launch_grid(block_count * kLanesPerWarp), sum_block_fixed_squares<E>,
                 sums, args);
  });
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
