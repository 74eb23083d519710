// The CUDA kernel sum_tree. A warp processes one block, and each of its lanes sums eight elements over all sources.
#include <stdexcept>
#include <string>

#include "kernels/device/launch_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/kernels_cuda.h"
#include "kernels/elementwise/register_tree.h"
#include "kernels/formats/element.h"

namespace aliquot::cuda {
namespace {

using Quad = Pack<float, kPackElements>;

struct SumArguments {
  const std::byte* sources[kMaxTreeSources];  // TreeSum::bases plus TreeSum::offset_bytes
  int source_count;
  bool aligned;  // every array is aligned to a pack of its type
  void* to;
  DType to_dtype;
  int64_t count;
  float factor;
  double* block_squares;
};

// Four elements with element-wise addition.
struct QuadSum {
  Quad quad;
  __device__ friend QuadSum operator+(const QuadSum& a, const QuadSum& b) {
    QuadSum sum;
    for (int k = 0; k < kPackElements; ++k) sum.quad.lane[k] = a.quad.lane[k] + b.quad.lane[k];
    return sum;
  }
};

// Loads four elements of a source from `first` on. Those with index >= count are zero.
template <class From>
struct Leaf {
  const SumArguments& arguments;
  int64_t first;
  __device__ QuadSum operator()(int r) const {
    const auto* source = reinterpret_cast<const typename From::Storage*>(arguments.sources[r]) + first;
    QuadSum sum = {};
    if (arguments.aligned && first + kPackElements <= arguments.count) {
      const auto pack = load_pack<kPackElements>(source);
      for (int k = 0; k < kPackElements; ++k) sum.quad.lane[k] = From::load(pack.lane[k]);
    } else {
      for (int k = 0; k < kPackElements; ++k) {
        if (first + k < arguments.count) sum.quad.lane[k] = From::load(source[k]);
      }
    }
    return sum;
  }
};

template <class To>
__device__ void store_quad(const SumArguments& arguments, int64_t first, const Quad& quad) {
  auto* to = static_cast<typename To::Storage*>(arguments.to) + first;
  if (arguments.aligned && first + kPackElements <= arguments.count) {
    Pack<typename To::Storage, kPackElements> pack;
    for (int k = 0; k < kPackElements; ++k) pack.lane[k] = To::store(quad.lane[k]);
    store_pack(to, pack);
  } else {
    for (int k = 0; k < kPackElements; ++k) {
      if (first + k < arguments.count) to[k] = To::store(quad.lane[k]);
    }
  }
}

__device__ void store_quad(const SumArguments& arguments, int64_t first, const Quad& quad) {
  switch (arguments.to_dtype) {
    case DType::kFloat32: return store_quad<Fp32Element>(arguments, first, quad);
    case DType::kBFloat16: return store_quad<Bf16Element>(arguments, first, quad);
    default: return store_quad<Fp16Element>(arguments, first, quad);
  }
}

// kStaticSourceCount is the number of sources at compile time. If it is 0, the number is arguments.source_count.
template <class From, int kStaticSourceCount>
__device__ Quad sum_quad(const SumArguments& arguments, int64_t first) {
  constexpr int kLevels = 6;
  static_assert((8 << (kLevels - 1)) >= kMaxTreeSources);
  const int source_count = kStaticSourceCount == 0 ? arguments.source_count : kStaticSourceCount;
  Quad quad = aligned_tree_sum<QuadSum, kLevels>(source_count, Leaf<From>{arguments, first}).quad;
  if (arguments.factor != 1.0f) {
    for (float& lane : quad.lane) lane *= arguments.factor;
  }
  return quad;
}

template <class From, int kStaticSourceCount>
__global__ void sum_blocks(const __grid_constant__ SumArguments arguments) {
  const int64_t block_count = (arguments.count + kBlockElements - 1) / kBlockElements;
  for (int64_t block = launch_warp(); block < block_count; block += launch_warp_stride()) {
    const int64_t first = block * kBlockElements + kPackElements * warp_lane();
    BlockPart part;
    part.low = sum_quad<From, kStaticSourceCount>(arguments, first);
    part.high = sum_quad<From, kStaticSourceCount>(arguments, first + kHalfBlockElements);
    store_quad(arguments, first, part.low);
    store_quad(arguments, first + kHalfBlockElements, part.high);
    if (arguments.block_squares == nullptr) continue;
    const float sum = block_square_sum(part, first, arguments.count);
    if (warp_lane() == 0) arguments.block_squares[block] = static_cast<double>(sum);
  }
}

template <class From>
void launch(Stream& stream, const SumArguments& arguments) {
  const int64_t block_count = (arguments.count + kBlockElements - 1) / kBlockElements;
  const auto kernel = [&] {
    switch (arguments.source_count) {
      case 2: return sum_blocks<From, 2>;
      case 4: return sum_blocks<From, 4>;
      case 8: return sum_blocks<From, 8>;
      default: return sum_blocks<From, 0>;
    }
  }();
  start_kernel(stream, "sum_tree", launch_grid(block_count * kLanesPerWarp), kernel, arguments);
}

bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

void require_valid(const TreeSum& sum) {
  if (sum.bases.empty() || sum.bases.size() > kMaxTreeSources) {
    throw std::logic_error("sum_tree on a GPU requires 1 to " + std::to_string(kMaxTreeSources) + " sources, not " +
                           std::to_string(sum.bases.size()));
  }
  for (const DType dtype : {sum.from_dtype, sum.to_dtype}) {
    if (!is_float(dtype)) throw std::logic_error("sum_tree does not support dtype " + std::string(name(dtype)));
  }
}

bool aligned_to_pack(const void* at, DType dtype) {
  return reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(kPackElements * element_bytes(dtype)) == 0;
}

}  // namespace

void sum_tree(Stream& stream, const TreeSum& sum) {
  require_valid(sum);
  if (sum.count <= 0) return;
  SumArguments arguments{};
  arguments.source_count = static_cast<int>(sum.bases.size());
  arguments.aligned = aligned_to_pack(sum.to, sum.to_dtype);
  for (int r = 0; r < arguments.source_count; ++r) {
    arguments.sources[r] = sum.bases[static_cast<std::size_t>(r)] + sum.offset_bytes;
    arguments.aligned = arguments.aligned && aligned_to_pack(arguments.sources[r], sum.from_dtype);
  }
  arguments.to = sum.to;
  arguments.to_dtype = sum.to_dtype;
  arguments.count = sum.count;
  arguments.factor = sum.factor;
  arguments.block_squares = sum.block_squares;
  switch (sum.from_dtype) {
    case DType::kFloat32: return launch<Fp32Element>(stream, arguments);
    case DType::kBFloat16: return launch<Bf16Element>(stream, arguments);
    default: return launch<Fp16Element>(stream, arguments);
  }
}

}  // namespace aliquot::cuda
