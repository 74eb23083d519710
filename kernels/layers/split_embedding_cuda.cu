// The CUDA kernels of embeddings whose table ranks divide.
#include "kernels/device/row_loops_cuda.h"
#include "kernels/elementwise/elements_cuda.h"
#include "kernels/layers/split_layers.h"
#include "kernels/layers/sum_divisions.h"

namespace aliquot {
namespace cuda {
namespace {

template <class Table>
__global__ void look_up_rows(float* to, const typename Table::Storage* table, const EmbeddingRows a,
                             unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  if (place.row >= a.rows) return;
  const int64_t entry = a.tokens[place.row] - a.first_entry;
  const bool has = 0 <= entry && entry < a.entries;
  to += place.row * a.width;
  const auto* from = table + (has ? entry : 0) * a.width;
  for_row<kPackElements>(a.width, elements_before_row_packs<kPackElements>(to, from), place,
                         [&]<int kCount>(int column) {
                           Pack<float, kCount> values{};
                           if (has) values = load_floats<Table, kCount>(from + column);
                           for (float& value : values.lane) value += 0.0f;  // -0 becomes 0, as in a sum over ranks
                           store_floats<Fp32Element, kCount>(to + column, values);
                         });
}

// Backward adds the rows of each token in segments: see kSegmentRows. The sum of the first segment begins with the
// value in the table, and the sums of the other segments with 0. The sums of segments are added from the first to the
// last. The order depends only on the tokens of the batch. So it is the same for all divisions of the table. For a
// token with one segment, it is the order of the rows.

/// The blocks that must fit on a multiprocessor. Without this number, the compiler uses too few registers for all loads
/// in flight.
constexpr int kSegmentBlocks = 4;

/// A token and the position of one of its rows in the sorted arrays.
struct TokenPosition {
  const TokenSortedRows& sorted;
  int64_t rows;
  int64_t position;
  int32_t token;

  __device__ TokenPosition(const TokenSortedRows& all, int64_t row_count, int64_t at)
      : sorted(all), rows(row_count), position(at), token(all.tokens[at]) {}

  /// Whether the row at this position has the same token.
  __device__ bool has(int64_t at) const { return 0 <= at && at < rows && sorted.tokens[at] == token; }
  /// The first position of the token. No position before `begin` has the token.
  __device__ int64_t first_from(int64_t begin) const {
    int64_t end = position;
    while (begin < end) {
      const int64_t middle = (begin + end) / 2;
      if (sorted.tokens[middle] < token) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }
  __device__ bool begins_token() const { return !has(position - 1); }
  __device__ bool begins_later_segment() const {
    return has(position - kSegmentRows) && (position - first_from(0)) % kSegmentRows == 0;
  }
};

/// The entry of a token in this rank's part of the table, or -1.
__device__ int64_t own_entry(const EmbeddingRows& a, int32_t token) {
  const int64_t entry = token - a.first_entry;
  return 0 <= entry && entry < a.entries ? entry : -1;
}

/// The sums of a segment in scratch. A full segment and a shorter one may begin in the same kSegmentRows positions.
__device__ float* segment_sums(const EmbeddingRows& a, int64_t first, bool is_full) {
  return a.scratch.data + (2 * (first / kSegmentRows) + (is_full ? 0 : 1)) * a.width;
}

template <int kCount>
__device__ void add_to(Pack<float, kCount>& sums, const Pack<float, kCount>& more) {
  for (int k = 0; k < kCount; ++k) sums.lane[k] += more.lane[k];
}

/// Adds the rows of the segment at `first` from the first to the last, with several loads in flight. `from` is the
/// address of the first of kCount columns.
template <int kCount>
__device__ void add_segment(Pack<float, kCount>& sums, const float* from, int64_t width, const TokenPosition& of,
                            int64_t first) {
  constexpr int kAtOnce = 8;
  const int64_t end = first + kSegmentRows;
  int64_t p = first;
  for (; p < end && of.has(p + kAtOnce - 1); p += kAtOnce) {
    Pack<float, kCount> rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) rows[i] = load_pack<kCount>(from + of.sorted.rows[p + i] * width);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) add_to(sums, rows[i]);
  }
  for (; p < end && of.has(p); ++p) add_to(sums, load_pack<kCount>(from + of.sorted.rows[p] * width));
}

/// With `divides`, the threads of the first row of each segment add the segment. They store the sums in the table or,
/// if the token has several segments, in scratch. Otherwise, the threads of the first row of each token add all
/// segments.
template <class Table>
__global__ void __launch_bounds__(kLaunchThreads, kSegmentBlocks)
    add_rows_of_tokens(typename Table::Storage* table, const float* from, const EmbeddingRows a,
                       const TokenSortedRows sorted, bool divides, unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  const int64_t first = place.row;
  if (first >= a.rows) return;
  const TokenPosition of(sorted, a.rows, first);
  const int64_t entry = own_entry(a, of.token);
  if (entry < 0) return;
  const bool begins_token = of.begins_token();
  if (!begins_token && !(divides && of.begins_later_segment())) return;
  const bool is_in_table = !divides || (begins_token && !of.has(first + kSegmentRows));
  float* partial = is_in_table ? nullptr : segment_sums(a, first, of.has(first + kSegmentRows - 1));
  typename Table::Storage* to = table + entry * a.width;
  for_row<kPackElements>(a.width, elements_before_row_packs<kPackElements>(to, from, from + a.width, partial), place,
                         [&]<int kCount>(int column) {
                           Pack<float, kCount> sums{};
                           if (begins_token) sums = load_floats<Table, kCount>(to + column);
                           add_segment(sums, from + column, a.width, of, first);
                           if (!is_in_table) return store_pack(partial + column, sums);
                           for (int64_t p = first + kSegmentRows; of.has(p); p += kSegmentRows) {
                             Pack<float, kCount> more{};
                             add_segment(more, from + column, a.width, of, p);
                             add_to(sums, more);
                           }
                           store_floats<Table, kCount>(to + column, sums);
                         });
}

/// Adds the sums of the segments of a token from the second segment on, with several loads in flight.
template <int kCount>
__device__ void add_later_segments(Pack<float, kCount>& sums, const EmbeddingRows& a, const TokenPosition& of,
                                   int64_t first, int column) {
  constexpr int kAtOnce = 8;
  int64_t p = first + kSegmentRows;
  for (; of.has(p + kAtOnce * kSegmentRows - 1); p += kAtOnce * kSegmentRows) {
    const float* at = segment_sums(a, p, true) + column;
    Pack<float, kCount> segments[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) segments[i] = load_pack<kCount>(at + 2 * i * a.width);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) add_to(sums, segments[i]);
  }
  for (; of.has(p); p += kSegmentRows)
    add_to(sums, load_pack<kCount>(segment_sums(a, p, of.has(p + kSegmentRows - 1)) + column));
}

/// At most one token with several segments begins in each kSegmentRows positions. It has the last of these positions.
template <class Table>
__global__ void __launch_bounds__(kLaunchThreads, kSegmentBlocks)
    add_segments_of_tokens(typename Table::Storage* table, const EmbeddingRows a, const TokenSortedRows sorted,
                           unsigned blocks_per_row) {
  const RowPlace place = row_place(blocks_per_row);
  const int64_t begin = place.row * kSegmentRows;
  if (begin >= a.rows) return;
  const TokenPosition of(sorted, a.rows, min(begin + kSegmentRows, a.rows) - 1);
  const int64_t entry = own_entry(a, of.token);
  if (entry < 0 || of.has(begin - 1)) return;
  const int64_t first = of.first_from(begin);
  if (!of.has(first + kSegmentRows)) return;
  typename Table::Storage* to = table + entry * a.width;
  const float* sums_of_first = segment_sums(a, first, true);
  for_row<kPackElements>(a.width, elements_before_row_packs<kPackElements>(to, sums_of_first, sums_of_first + a.width),
                         place, [&]<int kCount>(int column) {
                           auto sums = load_pack<kCount>(sums_of_first + column);
                           add_later_segments(sums, a, of, first, column);
                           store_floats<Table, kCount>(to + column, sums);
                         });
}

}  // namespace
}  // namespace cuda

void split_embedding_forward(Stream& stream, const EmbeddingRows& embedding, ConstValues table, float* to) {
  const cuda::RowGrid grid = cuda::row_grid(embedding.rows, embedding.width, kPackElements);
  cuda::as_element(table.type, [&]<class Table>(Table of) {
    start_kernel(stream, "embedding", grid.grid, cuda::look_up_rows<Table>, to, cuda::data_as(table, of), embedding,
                 grid.blocks_per_row);
  });
}

void split_embedding_backward(Stream& stream, const EmbeddingRows& embedding, const TokenSortedRows& sorted,
                              const float* from, Values table_gradient) {
  const int64_t rows = embedding.rows, width = embedding.width, required = embedding_scratch_elements(rows, width);
  const LayerScratch& scratch = embedding.scratch;
  const bool divides = required > 0 && scratch.data != nullptr && scratch.elements >= required;
  const cuda::RowGrid grid = cuda::row_grid(rows, width, kPackElements);
  const cuda::RowGrid tokens_grid = cuda::row_grid((rows + kSegmentRows - 1) / kSegmentRows, width, kPackElements);
  cuda::as_element(table_gradient.type, [&]<class Table>(Table of) {
    auto* table = cuda::data_as(table_gradient, of);
    start_kernel(stream, "embedding backward", grid.grid, cuda::add_rows_of_tokens<Table>, table, from, embedding,
                 sorted, divides, grid.blocks_per_row);
    if (!divides) return;
    start_kernel(stream, "embedding backward", tokens_grid.grid, cuda::add_segments_of_tokens<Table>, table, embedding,
                 sorted, tokens_grid.blocks_per_row);
  });
}

}  // namespace aliquot
