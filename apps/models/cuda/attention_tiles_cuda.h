#pragma once
// Tiles of the rows of a head in shared memory, for attention on tensor cores. A thread block of four warps computes
// the rows of one tile of queries (or keys) of one head, and loads the keys (or queries) into shared memory tile by
// tile. While it multiplies one tile, it copies the next one. Scores stay in registers. Backward has one kernel for the
// gradients of queries and one for those of keys and values, so that one block computes each sum, in a fixed order. Use
// it in *.cu files only.

#include <climits>

#include "apps/models/cuda/async_copy_cuda.h"
#include "apps/models/cuda/attention_place_cuda.h"
#include "kernels/elementwise/block_tree_cuda.h"
#include "kernels/elementwise/elements_cuda.h"

namespace aliquot::cuda {

inline constexpr int kTileThreads = 128, kTileWarps = kTileThreads / kLanesPerWarp;
/// The rows of one tensor core product. A warp computes one or two strips.
inline constexpr int kStripRows = 16;

/// A row in shared memory. The padding of eight elements puts eight consecutive rows in different banks.
template <int kWidth>
using TileRow = uint16_t[kWidth + 8];

/// Layout of a tile's rows in global memory: `count` valid rows of `width` elements, `stride` elements apart.
struct HeadRowsView {
  int64_t stride;
  int count, width;
  bool aligned;  // every row begins and ends at a multiple of 16 bytes
};

/// How kThreads adjacent threads divide the 16-byte packs of a tile: kPacksAcross threads per row.
template <int kWidth, int kThreads>
struct PackThreads {
  static constexpr int kPacksAcross = kWidth % 64 == 0 ? 8 : 4, kRowsDown = kThreads / kPacksAcross;
  /// The position of the first pack of the calling thread.
  __device__ static int own_row() { return static_cast<int>(threadIdx.x) % kThreads / kPacksAcross; }
  __device__ static int own_column() { return static_cast<int>(threadIdx.x) % kPacksAcross * 8; }
};

/// Loads tiles of kRows rows of a head. Sets the elements of rows and columns that do not exist to zero. Threads can
/// read a tile after wait_for_copies() and a barrier.
template <int kWidth, int kRows>
class TileLoader {
 public:
  /// `from` is the first row of the first tile.
  __device__ TileLoader(const uint16_t* from, int64_t stride, int width, bool aligned)
      : own_(from + Threads::own_row() * stride + Threads::own_column()),
        stride_(stride),
        width_(width),
        aligned_(aligned) {}

  /// Returns the loader of a tile that begins a number of elements later.
  __device__ TileLoader moved(int64_t elements) const {
    TileLoader result = *this;
    result.own_ += elements;
    return result;
  }

  /// Starts to load a tile, of which `count` rows exist.
  __device__ void start(TileRow<kWidth>* to, int count) const {
    if (!aligned_) return load_elements(to, count);
    const uint16_t* source = own_;
    uint16_t* target = &to[Threads::own_row()][Threads::own_column()];
    const int rows = count - Threads::own_row(), columns = width_ - Threads::own_column();
#pragma unroll
    for (int down = 0; down < kRows; down += Threads::kRowsDown) {
#pragma unroll
      for (int across = 0; across < kWidth; across += 8 * Threads::kPacksAcross) {
        start_copy<16>(target + down * (kWidth + 8) + across, source + across, down < rows && across < columns);
      }
      source += Threads::kRowsDown * stride_;
    }
  }

 private:
  using Threads = PackThreads<kWidth, kTileThreads>;
  static_assert(kRows % Threads::kRowsDown == 0);

  __device__ void load_elements(TileRow<kWidth>* to, int count) const {
    const uint16_t* from = own_ - Threads::own_row() * stride_ - Threads::own_column();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kWidth; i += kTileThreads) {
      const int row = i / kWidth, column = i % kWidth;
      to[row][column] = row < count && column < width_ ? from[row * stride_ + column] : uint16_t{0};
    }
  }

  const uint16_t* own_;  // the first pack that this thread loads
  int64_t stride_;
  int width_;
  bool aligned_;
};

/// Stores the valid elements of kRows rows of a tile. The calling warp has written these rows.
template <int kWidth, int kRows>
__device__ void store_rows(uint16_t* to, const TileRow<kWidth>* from, const HeadRowsView& at) {
  __syncwarp();
  if (!at.aligned) {
#pragma unroll 1
    for (int i = warp_lane(); i < kRows * kWidth; i += kLanesPerWarp) {
      const int row = i / kWidth, column = i % kWidth;
      if (row < at.count && column < at.width) to[row * at.stride + column] = from[row][column];
    }
    return;
  }
  using Threads = PackThreads<kWidth, kLanesPerWarp>;
#pragma unroll
  for (int row = Threads::own_row(); row < kRows; row += Threads::kRowsDown) {
#pragma unroll
    for (int column = Threads::own_column(); column < kWidth; column += 8 * Threads::kPacksAcross) {
      if (row < at.count && column < at.width)
        store_pack(to + row * at.stride + column, load_pack<8>(&from[row][column]));
    }
  }
}

/// Which scores of kQueries queries and kKeys keys count.
template <int kQueries, int kKeys>
struct TileMask {
  int apart, window;  // apart: first query minus first key

  __device__ TileMask(const AttentionShape& s, int first_query, int first_key)
      : apart(first_query - first_key),
        window(s.window > 0 && s.window < s.sequence ? static_cast<int>(s.window) : INT_MAX) {}
  __device__ bool all() const { return apart >= kKeys - 1 && apart + kQueries - 1 < window; }
  __device__ bool none() const { return apart + kQueries - 1 < 0 || apart - (kKeys - 1) >= window; }
  /// Whether the query attends to the key. Both are indices among the queries and keys of the mask.
  __device__ bool attends(int query, int key) const {
    const int before = query + apart - key;
    return before >= 0 && before < window;
  }
};

template <int kRows>
ALIQUOT_HOST_DEVICE int tile_count(const AttentionShape& s) {
  return static_cast<int>((s.sequence + kRows - 1) / kRows);
}

/// The number of rows of a tile of `most` rows that exist.
__device__ inline int valid_rows(int first, int sequence, int most) {
  const int left = sequence - first;
  return left < most ? left : most;
}

/// The first row of the calling warp in a tile of which each warp has kRows rows.
template <int kRows>
__device__ int warp_row() {
  return static_cast<int>(threadIdx.x) / kLanesPerWarp * kRows;
}

}  // namespace aliquot::cuda
