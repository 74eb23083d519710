#pragma once
// Loops over the rows of matrices in which no thread divides by the length of a row. For *.cu files.

#include <cstdint>

#include "kernels/device/launch_cuda.h"

namespace aliquot::cuda {

/// The grid of a kernel in which one or more thread blocks compute each row. The kernel passes blocks_per_row to
/// row_place().
struct RowGrid {
  Grid grid;
  unsigned blocks_per_row = 1;
};

/// Returns a grid for rows of `columns` elements of which a thread computes `pack_elements` at a time. Each thread
/// computes up to two packs. Without rows or columns, the grid has one block. The kernel must then do nothing.
inline RowGrid row_grid(int64_t rows, int64_t columns, int pack_elements) {
  constexpr int64_t kWarp = 32, kPacksPerThread = 2;
  const int64_t packs = (columns + pack_elements - 1) / pack_elements;
  const int64_t warps = (packs + kPacksPerThread * kWarp - 1) / (kPacksPerThread * kWarp);
  const int64_t threads = kWarp * (warps < 1 ? 1 : warps < kLaunchThreads / kWarp ? warps : kLaunchThreads / kWarp);
  const int64_t blocks = (packs + kPacksPerThread * threads - 1) / (kPacksPerThread * threads);
  const auto per_row = static_cast<unsigned>(blocks < 1 ? 1 : blocks);
  return {{static_cast<unsigned>(rows < 1 ? 1 : rows) * per_row, static_cast<unsigned>(threads)}, per_row};
}

/// The row of a thread, the first pack of the row that it computes, and the distance to its next pack.
struct RowPlace {
  int64_t row;
  int first, stride;
};

__device__ inline RowPlace row_place(unsigned blocks_per_row) {
  return {blockIdx.x / blocks_per_row, static_cast<int>(blockIdx.x % blocks_per_row * blockDim.x + threadIdx.x),
          static_cast<int>(blocks_per_row * blockDim.x)};
}

/// Returns the smallest index i below kCount for which each pointer + i is aligned to a pack of kCount elements.
/// Returns -1 if no such index exists. Null pointers count as aligned.
template <int kCount, class... T>
__device__ int elements_before_row_packs(const T*... at) {
  for (int head = 0; head < kCount; ++head) {
    if (((at == nullptr || (reinterpret_cast<uintptr_t>(at) + head * sizeof(T)) % (kCount * sizeof(T)) == 0) && ...))
      return head;
  }
  return -1;
}

/// Calls body.operator()<kCount>(column) for packs of kCount columns from `head` on, and body.operator()<1>(column) for
/// each column before and after them. If `head` is -1, there are no packs. Each call is made by one thread of the row.
template <int kCount, class Body>
__device__ void for_row(int64_t columns, int head, const RowPlace& place, const Body& body) {
  const int count = static_cast<int>(columns);
  const int before = head < 0 || head > count ? 0 : head;
  const int packs = head < 0 || head > count ? 0 : (count - head) / kCount;
  for (int p = place.first; p < packs; p += place.stride) body.template operator()<kCount>(before + kCount * p);
  const int rest = count - kCount * packs;
  for (int r = place.first; r < rest; r += place.stride) {
    body.template operator()<1>(r < before ? r : r + kCount * packs);
  }
}

}  // namespace aliquot::cuda
