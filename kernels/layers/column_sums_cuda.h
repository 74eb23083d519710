#pragma once
// Sums of the columns of a matrix, with a fixed order of addition. For *.cu files.
//
// Each of kRowLanes threads adds every kRowLanes-th row of a range of rows. The sums of the threads are added from the
// first to the last, then those of the ranges of a group, then those of the groups. The order depends only on the
// number of rows: see RowRanges. With scratch memory, one kernel sums all ranges at the same time, and a second one
// adds their sums. Without it, the thread blocks of one kernel loop over the ranges. Both give the same bits.

#include <cstdint>

#include "kernels/elementwise/elements_cuda.h"
#include "kernels/layers/layer_rows.h"
#include "kernels/layers/sum_divisions.h"

namespace aliquot::cuda {

inline constexpr int kColumnLanes = 16, kSumThreads = kColumnLanes * kRowLanes;
/// The blocks that must fit on a multiprocessor. With a larger number, threads have too few registers for all loads in
/// flight. Without one, the compiler uses fewer registers than it may use.
inline constexpr int kSumBlocks = 3;
/// The columns and threads of a block of add_range_sums().
inline constexpr int kAddedColumns = 32, kAddThreads = kAddedColumns * kRangeGroups;

/// Where the sums of the columns of a matrix are stored. With `add`, they are added to the values there. A kernel may
/// compute kSums different sums of each column.
template <int kSums>
struct ColumnResults {
  static_assert(kSums == 1 || kSums == 2);
  Values to[kSums];
  int64_t rows = 0, columns = 0;
  bool add = false;
};

/// The sums of one column.
template <int kSums>
struct SumsOfColumn {
  float of[kSums] = {};
  __device__ void add(const SumsOfColumn& more) {
    for (int s = 0; s < kSums; ++s) of[s] += more.of[s];
  }
};

template <class E>
__device__ void put_column_as(void* to, int64_t column, float sum, bool add) {
  auto* at = static_cast<typename E::Storage*>(to) + column;
  *at = E::store(add ? E::load(*at) + sum : sum);
}
__device__ inline void put_column(Values to, int64_t column, float sum, bool add) {
  if (to.type == DType::kFloat32) return put_column_as<Fp32Element>(to.data, column, sum, add);
  if (to.type == DType::kFloat16) return put_column_as<Fp16Element>(to.data, column, sum, add);
  put_column_as<Bf16Element>(to.data, column, sum, add);
}

/// The first of the kColumnLanes * kPack columns of a block.
template <int kPack>
__device__ int64_t first_column(unsigned column_block) {
  return static_cast<int64_t>(column_block) * kColumnLanes * kPack;
}

/// Adds every kRowLanes-th row in [row, end) to the sums of kPack columns. Terms::load() loads the values of a row, and
/// Terms::add() adds its terms. The loads of several rows are in flight at the same time.
template <int kPack, class Terms>
__device__ void add_rows(const Terms& terms, int64_t row, int64_t end, int64_t column,
                         float (&sums)[Terms::kSums][kPack]) {
  constexpr int kAtOnce = 4;
  for (; row + (kAtOnce - 1) * kRowLanes < end; row += kAtOnce * kRowLanes) {
    typename Terms::template Row<kPack> rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) rows[i] = terms.template load<kPack>(row + i * kRowLanes, column);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) terms.add(rows[i], sums);
  }
  for (; row < end; row += kRowLanes) terms.add(terms.template load<kPack>(row, column), sums);
}

/// Thread t < kColumnLanes * kPack gets the sums of column t of the block over a range of rows. All threads of the
/// block call it.
template <int kPack, class Terms>
__device__ SumsOfColumn<Terms::kSums> sums_of_range(const Terms& terms, unsigned column_block, int64_t begin,
                                                    int64_t end, int64_t columns) {
  constexpr int kColumns = kColumnLanes * kPack;
  __shared__ float lanes[kRowLanes][Terms::kSums][kColumns];
  const int lane = static_cast<int>(threadIdx.x) / kColumnLanes;
  const int in_block = static_cast<int>(threadIdx.x) % kColumnLanes * kPack;
  const int64_t column = first_column<kPack>(column_block) + in_block;
  float sums[Terms::kSums][kPack] = {};
  if (column < columns) add_rows(terms, begin + lane, end, column, sums);
  __syncthreads();  // all threads have read the sums of the previous range
  for (int s = 0; s < Terms::kSums; ++s) {
    for (int k = 0; k < kPack; ++k) lanes[lane][s][in_block + k] = sums[s][k];
  }
  __syncthreads();
  SumsOfColumn<Terms::kSums> result;
  if (threadIdx.x >= kColumns) return result;
  for (int l = 0; l < kRowLanes; ++l) {
    for (int s = 0; s < Terms::kSums; ++s) result.of[s] += lanes[l][s][threadIdx.x];
  }
  return result;
}

/// Block i stores the sums of range i / column_blocks.
template <int kPack, class Terms>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks)
    sum_ranges(const Terms terms, const ColumnResults<Terms::kSums> to, const RowRanges ranges, float* partial) {
  constexpr int kColumns = kColumnLanes * kPack;
  const unsigned column_blocks = gridDim.x / static_cast<unsigned>(ranges.count);
  const unsigned range = blockIdx.x / column_blocks, column_block = blockIdx.x % column_blocks;
  const int64_t begin = range * ranges.rows, end = min(begin + ranges.rows, to.rows);
  const auto sums = sums_of_range<kPack>(terms, column_block, begin, end, to.columns);
  const int64_t column = first_column<kPack>(column_block) + threadIdx.x;
  if (threadIdx.x >= kColumns || column >= to.columns) return;
  for (int s = 0; s < Terms::kSums; ++s) {
    partial[(static_cast<int64_t>(range) * Terms::kSums + s) * to.columns + column] = sums.of[s];
  }
}

/// Each block adds kAddedColumns columns of the sums of sum_ranges(). Each warp adds those of one group.
template <int kSums>
__global__ void __launch_bounds__(kAddThreads)
    add_range_sums(const ColumnResults<kSums> to, const RowRanges ranges, const float* partial) {
  __shared__ float groups[kRangeGroups][kAddedColumns];
  const unsigned column_blocks = gridDim.x / kSums;
  const unsigned s = blockIdx.x / column_blocks;
  const int in_block = static_cast<int>(threadIdx.x) % kAddedColumns;
  const int group = static_cast<int>(threadIdx.x) / kAddedColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x % column_blocks) * kAddedColumns + in_block;
  const int end = min((group + 1) * ranges.in_group, ranges.count);
  float sum = 0.0f;
  if (column < to.columns) {
    const float* at = partial + s * to.columns + column;
#pragma unroll 8
    for (int range = group * ranges.in_group; range < end; ++range) sum += at[range * kSums * to.columns];
  }
  groups[group][in_block] = sum;
  __syncthreads();
  if (group > 0 || column >= to.columns) return;
  float total = 0.0f;
  for (int g = 0; g < kRangeGroups; ++g) total += groups[g][in_block];
  put_column(s == 0 ? to.to[0] : to.to[kSums - 1], column, total, to.add);
}

/// Computes the same results in one kernel.
template <int kPack, class Terms>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks)
    sum_all_ranges(const Terms terms, const ColumnResults<Terms::kSums> to, const RowRanges ranges) {
  SumsOfColumn<Terms::kSums> total;
  for (int group = 0; group < kRangeGroups; ++group) {
    SumsOfColumn<Terms::kSums> of_group;
    const int range_end = min((group + 1) * ranges.in_group, ranges.count);
    for (int range = group * ranges.in_group; range < range_end; ++range) {
      const int64_t begin = range * ranges.rows, end = min(begin + ranges.rows, to.rows);
      of_group.add(sums_of_range<kPack>(terms, blockIdx.x, begin, end, to.columns));
    }
    total.add(of_group);
  }
  const int64_t column = first_column<kPack>(blockIdx.x) + threadIdx.x;
  if (threadIdx.x >= kColumnLanes * kPack || column >= to.columns) return;
  for (int s = 0; s < Terms::kSums; ++s) put_column(to.to[s], column, total.of[s], to.add);
}

/// Enqueues sums of columns. Each thread loads kPack columns of a row at a time, which the addresses must allow.
template <int kPack, class Terms>
void start_column_sums(Stream& stream, const char* name, const Terms& terms, const ColumnResults<Terms::kSums>& to,
                       const LayerScratch& scratch) {
  constexpr int64_t kColumns = kColumnLanes * kPack;
  if (to.columns <= 0) return;
  const RowRanges ranges = row_ranges(to.rows);
  const auto column_blocks = static_cast<unsigned>((to.columns + kColumns - 1) / kColumns);
  const int64_t needed = column_sums_scratch_elements(to.rows, Terms::kSums * to.columns);
  if (ranges.count == 1 || scratch.data == nullptr || scratch.elements < needed) {
    return start_kernel(stream, name, {column_blocks, kSumThreads}, sum_all_ranges<kPack, Terms>, terms, to, ranges);
  }
  start_kernel(stream, name, {column_blocks * static_cast<unsigned>(ranges.count), kSumThreads},
               sum_ranges<kPack, Terms>, terms, to, ranges, scratch.data);
  const auto blocks = static_cast<unsigned>((to.columns + kAddedColumns - 1) / kAddedColumns) * Terms::kSums;
  start_kernel(stream, name, {blocks, kAddThreads}, add_range_sums<Terms::kSums>, to, ranges, scratch.data);
}

/// Whether packs of kPack elements can be loaded from each row of a matrix, which are `stride` elements apart.
template <int kPack, class T>
bool columns_have_packs(int64_t columns, int64_t stride, const T* at) {
  return columns % kPack == 0 && stride % kPack == 0 && reinterpret_cast<uintptr_t>(at) % (kPack * sizeof(T)) == 0;
}

}  // namespace aliquot::cuda
