// The CUDA kernels of the quantization to fp8. The first finds the largest magnitudes of parts of the matrix. The
// second computes the scale from them, and writes the copies. Maxima do not depend on their order.
#include "kernels/device/launch_cuda.h"
#include "kernels/gemm/fp8_convert_cuda.h"
#include "kernels/gemm/fp8_cuda.h"
#include "kernels/gemm/product_scratch.h"

namespace aliquot::cuda {
namespace {

constexpr int kThreads = kLaunchThreads, kWarpLanes = 32;
constexpr int kPackWords = 4, kPackValues = 2 * kPackWords;  // 16 bytes
// A thread quantizes 16 adjacent elements of a tile, and stores 16 bytes.
constexpr int kTile = 64, kOwnElements = 16, kThreadsPerRow = kTile / kOwnElements;
static_assert(kTile * kThreadsPerRow == kThreads);
/// The words of a row of a tile in shared memory. An odd number distributes columns over more banks.
constexpr int kPitchWords = kTile / 4 + 1;

using Words = Pack<uint32_t, kPackWords>;

/// Returns the largest value of the block to all threads. Call it once in a kernel.
__device__ uint32_t max_of_block(uint32_t value) {
  __shared__ uint32_t of_warp[kThreads / kWarpLanes];
  value = __reduce_max_sync(0xffffffffu, value);
  if (threadIdx.x % kWarpLanes == 0) of_warp[threadIdx.x / kWarpLanes] = value;
  __syncthreads();
  for (const uint32_t other : of_warp) value = max(value, other);
  return value;
}

/// A matrix as packs of eight bf16 values.
struct PackedMatrix {
  const uint16_t* values;
  int64_t stride;
  unsigned row_packs, packs;

  __device__ Words load(unsigned pack) const {
    const unsigned row = pack / row_packs, column = pack % row_packs;
    const uint16_t* at = values + row * stride + int64_t{column} * kPackValues;
    return load_pack<kPackWords>(reinterpret_cast<const uint32_t*>(at));
  }
};

/// Magnitudes are compared as the bits of fp32 values. So infinity is above all finite values, and NaN above infinity.
__global__ void __launch_bounds__(kThreads) find_largest(PackedMatrix from, uint32_t* partial_maxima) {
  constexpr int kLoads = 4;
  constexpr uint32_t kMagnitude = 0x7fff0000u;
  uint32_t largest = 0;
  for (int64_t first = launch_thread(); first < from.packs; first += kLoads * launch_stride()) {
    Words loaded[kLoads];
    ALIQUOT_UNROLL
    for (int k = 0; k < kLoads; ++k) {
      const int64_t pack = first + k * launch_stride();
      loaded[k] = pack < from.packs ? from.load(static_cast<unsigned>(pack)) : Words{};
    }
    ALIQUOT_UNROLL
    for (int k = 0; k < kLoads; ++k) {
      ALIQUOT_UNROLL
      for (int w = 0; w < kPackWords; ++w) {
        const uint32_t word = loaded[k].lane[w];
        largest = max(largest, max(word << 16 & kMagnitude, word & kMagnitude));
      }
    }
  }
  largest = max_of_block(largest);
  if (threadIdx.x == 0) partial_maxima[blockIdx.x] = largest;
}

/// The arguments of write_copies().
struct Copies {
  Fp8Quantization a;
  unsigned partial_count, tiles, tiles_across;
};

/// Returns kOwnElements values, scaled and rounded.
template <Fp8Format kFormat>
__device__ Words quantized(const uint16_t* from, float scale) {
  const auto* words = reinterpret_cast<const uint32_t*>(from);
  const Words half[2] = {load_pack<kPackWords>(words), load_pack<kPackWords>(words + kPackWords)};
  Words result;
  ALIQUOT_UNROLL
  for (int w = 0; w < kPackWords; ++w) {
    uint32_t pairs[2];
    ALIQUOT_UNROLL
    for (int p = 0; p < 2; ++p) {
      const uint32_t two = half[w / 2].lane[2 * (w % 2) + p];
      const float low = float_from_bits(two << 16), high = float_from_bits(two & 0xffff0000u);
      pairs[p] = to_fp8_pair<kFormat>(low * scale, high * scale);
    }
    result.lane[w] = pairs[0] | pairs[1] << 16;
  }
  return result;
}

/// Returns the elements [first, first + kOwnElements) of a column of a tile.
__device__ Words column_of(const uint32_t* tile, int column, int first) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(tile) + first * 4 * kPitchWords + column;
  Words result;
  ALIQUOT_UNROLL
  for (int w = 0; w < kPackWords; ++w) {
    result.lane[w] = 0;
    ALIQUOT_UNROLL
    for (int b = 0; b < 4; ++b)
      result.lane[w] |= static_cast<uint32_t>(bytes[(4 * w + b) * 4 * kPitchWords]) << (8 * b);
  }
  return result;
}

template <Fp8Format kFormat, bool kTransposes>
__global__ void __launch_bounds__(kThreads) write_copies(Copies copies) {
  __shared__ uint32_t tile_words[kTransposes ? kTile * kPitchWords : 1];
  const Fp8Quantization& a = copies.a;
  uint32_t largest = 0;
  for (unsigned i = threadIdx.x; i < copies.partial_count; i += kThreads) largest = max(largest, a.partial_maxima[i]);
  const float scale = fp8_scale(float_from_bits(max_of_block(largest)), kFormat);
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.inverse_scale = 1.0f / scale;
  const int own = static_cast<int>(threadIdx.x) / kThreadsPerRow;
  const int first = static_cast<int>(threadIdx.x) % kThreadsPerRow * kOwnElements;
  for (unsigned tile = blockIdx.x; tile < copies.tiles; tile += gridDim.x) {
    const int64_t top = int64_t{tile / copies.tiles_across} * kTile;
    const int64_t left = int64_t{tile % copies.tiles_across} * kTile;
    const int64_t row = top + own, column = left + first;
    if (row < a.rows && column < a.columns) {
      const Words words = quantized<kFormat>(a.from + row * a.stride + column, scale);
      if (a.to != nullptr) store_pack(reinterpret_cast<uint32_t*>(a.to + row * a.columns + column), words);
      if constexpr (kTransposes) {
        for (int w = 0; w < kPackWords; ++w) tile_words[own * kPitchWords + first / 4 + w] = words.lane[w];
      }
    }
    if constexpr (kTransposes) {
      __syncthreads();
      if (left + own < a.columns && top + first < a.rows) {
        store_pack(reinterpret_cast<uint32_t*>(a.transposed + (left + own) * a.rows + top + first),
                   column_of(tile_words, own, first));
      }
      __syncthreads();
    }
  }
}

template <Fp8Format kFormat>
void start_copies(Stream& stream, const Grid& grid, const Copies& copies) {
  const auto kernel = copies.a.transposed != nullptr ? write_copies<kFormat, true> : write_copies<kFormat, false>;
  start_kernel(stream, "quantize_fp8", grid, kernel, copies);
}

unsigned blocks_for(int64_t work, int64_t work_per_block, int64_t most) {
  const int64_t blocks = (work + work_per_block - 1) / work_per_block;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

bool is_aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

}  // namespace

bool can_quantize_fp8(const Fp8Quantization& a) {
  const bool fits = a.rows * a.columns / kPackValues <= INT32_MAX;
  return a.rows > 0 && a.columns > 0 && fits && a.rows % kOwnElements == 0 && a.columns % kOwnElements == 0 &&
         a.stride % kPackValues == 0 && is_aligned(a.from);
}

void quantize_fp8(Stream& stream, const Fp8Quantization& a) {
  constexpr int kPacksPerThread = 4, kMostBlocks = 1056;  // eight blocks for each multiprocessor of an H200
  const auto packs = static_cast<unsigned>(a.rows * a.columns / kPackValues);
  // A contiguous matrix is one row, so that all threads have the same work.
  const bool contiguous = a.stride == a.columns;
  const PackedMatrix from{a.from, a.stride, contiguous ? packs : static_cast<unsigned>(a.columns / kPackValues), packs};
  const Grid grid{blocks_for(packs, kPacksPerThread * kThreads, kFp8PartialMaxima), kThreads};
  start_kernel(stream, "largest_magnitude", grid, find_largest, from, a.partial_maxima);
  const auto across = static_cast<unsigned>((a.columns + kTile - 1) / kTile);
  const unsigned tiles = across * static_cast<unsigned>((a.rows + kTile - 1) / kTile);
  const Copies copies{a, grid.blocks, tiles, across};
  const Grid tile_grid{blocks_for(tiles, 1, kMostBlocks), kThreads};
  if (a.format == Fp8Format::kE4M3) return start_copies<Fp8Format::kE4M3>(stream, tile_grid, copies);
  start_copies<Fp8Format::kE5M2>(stream, tile_grid, copies);
}

}  // namespace aliquot::cuda
