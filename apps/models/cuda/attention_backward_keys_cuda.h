#pragma once
// The gradients of keys and values in attention on tensor cores: see attention_tiles_cuda.h. AttentionBackward::scratch
// holds the deltas, and `from` the rounded gradients, of sum_deltas_and_round(). Use it in *.cu files only.

#include "apps/models/cuda/attention_products_cuda.h"

namespace aliquot::cuda {

/// Sizes of the tiles of attend_tiles_backward_keys(). Registers limit them: heads wider than 64 elements need more
/// registers for sums, so a warp has only one strip of keys.
template <int kWidth>
struct BackwardKeysTiles {
  static constexpr int kStrips = kWidth > 64 ? 1 : 2, kWarpRows = kStrips * kStripRows;
  static constexpr int kKeys = kTileWarps * kWarpRows, kQueries = 32;
  using Rows = LeftRows<(kWidth > 64), kWidth, kStrips>;
  static constexpr unsigned kSharedBytes =
      (2 * kKeys + 4 * kQueries) * sizeof(TileRow<kWidth>) + 4 * kQueries * sizeof(float);
};

/// The keys and values of a thread block, and the queries that attend to them. Several query heads may share a key and
/// value head: the block loads their queries head by head.
template <int kWidth>
class KeyBlock {
 public:
  using Tiles = BackwardKeysTiles<kWidth>;
  static constexpr int kKeys = Tiles::kKeys, kQueries = Tiles::kQueries;

  __device__ KeyBlock(const AttentionBackward& a, bool aligned)
      : s_(a.shape),
        aligned_(aligned),
        first_(static_cast<int>(blockIdx.x) % tile_count<kKeys>(s_) * kKeys),
        first_head_(static_cast<int>(blockIdx.x) / tile_count<kKeys>(s_) * group()),
        queries_from_(loader<kQueries>(a.qkv.data, HeadOffsets(s_, first_head_).query(s_, first_), s_.stride())),
        outputs_from_(loader<kQueries>(a.from, HeadOffsets(s_, first_head_).rounded_gradient(s_, first_),
                                       HeadOffsets::rounded_stride(s_))),
        row_values_from_((thread() < kQueries ? a.log_sums : a.scratch) + first_head_ * s_.sequence + first_) {}

  __device__ void start_keys(const void* qkv) const {
    const int64_t offset = HeadOffsets(s_, first_head_).key(s_, first_);
    const int count = valid_rows(first_, sequence(), kKeys);
    loader<kKeys>(qkv, offset, s_.stride()).start(keys(), count);
    loader<kKeys>(qkv, offset + s_.kv_width(), s_.stride()).start(values(), count);
  }
  /// Starts to load queries from `query` on and the gradients of their outputs into one of two buffers.
  __device__ void start_queries(int query, int buffer) const {
    const int count = valid_rows(query, sequence(), kQueries);
    queries_from_.start(queries(buffer), count);
    outputs_from_.start(from(buffer), count);
    static_assert(2 * kQueries <= kTileThreads);
    const int row = thread() % kQueries;
    if (thread() < 2 * kQueries) start_copy<4>(log_sums(buffer) + thread(), row_values_from_ + row, row < count);
  }
  /// Moves the place from which start_queries() loads by a number of heads and rows.
  __device__ void move(int heads, int rows) {
    queries_from_ = queries_from_.moved(heads * s_.head_width + rows * s_.stride());
    outputs_from_ = outputs_from_.moved(heads * s_.head_width + rows * HeadOffsets::rounded_stride(s_));
    row_values_from_ += heads * s_.sequence + rows;
  }

  __device__ TileRow<kWidth>* keys() const { return shared_memory<TileRow<kWidth>>(); }
  __device__ TileRow<kWidth>* values() const { return keys() + kKeys; }
  __device__ TileRow<kWidth>* queries(int buffer) const { return values() + kKeys + 2 * buffer * kQueries; }
  __device__ TileRow<kWidth>* from(int buffer) const { return queries(buffer) + kQueries; }
  __device__ float* log_sums(int buffer) const { return reinterpret_cast<float*>(queries(2)) + 2 * buffer * kQueries; }
  __device__ float* deltas(int buffer) const { return log_sums(buffer) + kQueries; }
  __device__ int first_query() const { return first_; }
  __device__ int end_query() const {
    const int last = first_ + kKeys - 1;
    return last < sequence() ? static_cast<int>(s_.end_query(last)) : sequence();
  }
  __device__ int group() const { return static_cast<int>(s_.heads / s_.kv_heads); }
  __device__ int warp_key() const { return first_ + warp_row<Tiles::kWarpRows>(); }

  /// Stores the gradients of the warp's keys and values.
  template <class E>
  __device__ void store(uint16_t* to, const WarpSums<Tiles::kStrips, kWidth>& of_keys,
                        const WarpSums<Tiles::kStrips, kWidth>& of_values) const {
    to += HeadOffsets(s_, first_head_).key(s_, warp_key());
    const HeadRowsView own{s_.stride(), valid_rows(warp_key(), sequence(), Tiles::kWarpRows),
                           static_cast<int>(s_.head_width), aligned_};
    const int row = warp_row<Tiles::kWarpRows>();
    store_sums<E, kWidth, Tiles::kStrips>(to, keys() + row, own, of_keys, score_scale(s_));
    store_sums<E, kWidth, Tiles::kStrips>(to + s_.kv_width(), values() + row, own, of_values, 1.0f);
  }

 private:
  template <int kRows>
  __device__ TileLoader<kWidth, kRows> loader(const void* data, int64_t offset, int64_t stride) const {
    return {static_cast<const uint16_t*>(data) + offset, stride, static_cast<int>(s_.head_width), aligned_};
  }
  __device__ int sequence() const { return static_cast<int>(s_.sequence); }
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  const AttentionShape& s_;
  bool aligned_;
  int first_, first_head_;
  TileLoader<kWidth, kQueries> queries_from_, outputs_from_;
  const float* row_values_from_;  // the log sums or deltas that this thread loads
};

/// Calls body(strip, n, i, value) for each element that a lane holds, with the value of its column.
template <int kStrips, int kColumns, class Body>
__device__ void for_column_values(const float* of_columns, Body&& body) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const Pack<float, 2> two = load_pack<2>(of_columns + column_of(n, 0));
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
      for (int i = 0; i < 4; ++i) body(strip, n, i, two.lane[i % 2]);
    }
  }
}

/// The gradients of a warp's keys and values.
template <class E, int kWidth>
struct KeyGradients {
  using Tiles = BackwardKeysTiles<kWidth>;
  static constexpr int kStrips = Tiles::kStrips, kQueries = Tiles::kQueries;
  using Mask = TileMask<kQueries, Tiles::kWarpRows>;

  WarpSums<kStrips, kWidth> of_keys = {}, of_values = {};

  /// Adds the contributions of the queries in one of two buffers. Scores are transposed: rows are keys and columns are
  /// queries.
  __device__ void add(const KeyBlock<kWidth>& block, int buffer, const typename Tiles::Rows& keys,
                      const typename Tiles::Rows& values, const Mask& mask, float scale) {
    WarpSums<kStrips, kQueries> scores, gradients;
    clear<kStrips, kQueries>(scores);
    add_products<E, kWidth, kQueries, kStrips>(scores, keys, block.queries(buffer));
    if (!mask.all()) {
      mask_scores<kStrips, kQueries>(scores, [&](int key, int query) { return mask.attends(query, key); });
    }
    for_column_values<kStrips, kQueries>(block.log_sums(buffer), [&](int strip, int n, int i, float log_sum) {
      scores[strip][n][i] = approximate_exp2(fmaf(scores[strip][n][i], scale, log_sum * -kLog2E));
    });
    add_weighted_rows<E, kWidth, kQueries, kStrips>(of_values, scores, block.from(buffer));
    for_column_values<kStrips, kQueries>(
        block.deltas(buffer), [&](int strip, int n, int i, float delta) { gradients[strip][n][i] = -delta; });
    add_products<E, kWidth, kQueries, kStrips>(gradients, values, block.from(buffer));
    for_sums<kStrips, kQueries>(
        [&](int strip, int n, int i, int, int) { gradients[strip][n][i] *= scores[strip][n][i]; });
    add_weighted_rows<E, kWidth, kQueries, kStrips>(of_keys, gradients, block.queries(buffer));
  }
};

/// Computes the gradients of keys and values.
template <class E, int kWidth>
__global__ void __launch_bounds__(kTileThreads, 2) attend_tiles_backward_keys(const AttentionBackward a, bool aligned) {
  using Tiles = BackwardKeysTiles<kWidth>;
  constexpr int kQueries = Tiles::kQueries;
  KeyBlock<kWidth> block(a, aligned);
  block.start_keys(a.qkv.data);
  block.start_queries(block.first_query(), 0);
  wait_for_copies();
  __syncthreads();
  const int row = warp_row<Tiles::kWarpRows>();
  const typename Tiles::Rows keys(block.keys(), row), values(block.values(), row);
  const float scale = score_scale(a.shape) * kLog2E;
  KeyGradients<E, kWidth> gradients;
  int head = 0, query = block.first_query(), buffer = 0;
  while (head < block.group()) {
    const bool head_ends = query + kQueries >= block.end_query();
    const int next_head = head_ends ? head + 1 : head, next_query = head_ends ? block.first_query() : query + kQueries;
    if (next_head < block.group()) {
      block.move(next_head - head, next_query - query);
      block.start_queries(next_query, buffer ^ 1);
    }
    const TileMask<kQueries, Tiles::kWarpRows> mask(a.shape, query, block.warp_key());
    if (!mask.none()) gradients.add(block, buffer, keys, values, mask, scale);
    wait_for_copies();
    __syncthreads();  // the next tile is complete, and all threads have finished with this one
    head = next_head;
    query = next_query;
    buffer ^= 1;
  }
  block.template store<E>(static_cast<uint16_t*>(a.to.data), gradients.of_keys, gradients.of_values);
}

}  // namespace aliquot::cuda
