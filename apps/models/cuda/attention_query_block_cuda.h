#pragma once
// A thread block that computes a tile of queries of one head on tensor cores: see attention_tiles_cuda.h. Use it in
// *.cu files only.

#include "apps/models/cuda/attention_products_cuda.h"

namespace aliquot::cuda {

/// Sizes of tiles. Each query of a block has a row in each of kTilesOfQueries tiles. Shared memory also has two buffers
/// of kKeysInTile keys and values. If kKeepsRows, warps keep the rows of their queries in registers.
template <int kWidth, int kTilesOfQueries, int kKeysInTile, bool kKeepsRows>
struct QueryTiles {
  static constexpr int kStrips = 2, kWarpRows = kStrips * kStripRows, kQueries = kTileWarps * kWarpRows;
  static constexpr int kOwnTiles = kTilesOfQueries, kKeys = kKeysInTile;
  static constexpr unsigned kSharedBytes = (kOwnTiles * kQueries + 4 * kKeys) * sizeof(TileRow<kWidth>);
  using Rows = LeftRows<kKeepsRows, kWidth, kStrips>;
};

template <int kWidth, class Tiles>
class QueryBlock {
 public:
  static constexpr int kWarpRows = Tiles::kWarpRows, kKeys = Tiles::kKeys;

  __device__ QueryBlock(const AttentionShape& s, const void* qkv, bool aligned)
      : s_(s),
        aligned_(aligned),
        head_(static_cast<int>(blockIdx.x) / tile_count<Tiles::kQueries>(s)),
        // The thread blocks with the most keys start first.
        first_(static_cast<int>(gridDim.x - 1 - blockIdx.x) % tile_count<Tiles::kQueries>(s) * Tiles::kQueries),
        keys_from_(loader<kKeys>(qkv, HeadOffsets(s, head_).key(s, first_key()), s.stride())) {}

  __device__ int head() const { return head_; }
  __device__ int first_query() const { return first_; }
  /// The first key of the first tile, and one past the last key.
  __device__ int first_key() const { return static_cast<int>(s_.first_key(first_)) / kKeys * kKeys; }
  __device__ int end_key() const { return first_ + valid_rows(first_, sequence(), Tiles::kQueries); }
  /// The queries of the calling warp.
  __device__ int warp_query() const { return first_ + warp_row<kWarpRows>(); }
  __device__ int warp_queries() const { return valid_rows(warp_query(), sequence(), kWarpRows); }

  /// Starts to load one of the tiles of queries. `offset` is that of the first query.
  __device__ void start_own(int tile, const void* data, int64_t offset, int64_t stride) const {
    loader<Tiles::kQueries>(data, offset, stride).start(own(tile), valid_rows(first_, sequence(), Tiles::kQueries));
  }
  /// Starts to load the next keys and values, from `key` on, into one of two buffers.
  __device__ void start_keys(int key, int buffer) {
    const int count = valid_rows(key, sequence(), kKeys);
    keys_from_.start(keys(buffer), count);
    keys_from_.moved(s_.kv_width()).start(values(buffer), count);
    keys_from_ = keys_from_.moved(kKeys * s_.stride());
  }
  __device__ TileRow<kWidth>* own(int tile) const { return shared_memory<TileRow<kWidth>>() + tile * Tiles::kQueries; }
  __device__ TileRow<kWidth>* keys(int buffer) const { return own(Tiles::kOwnTiles) + 2 * buffer * kKeys; }
  __device__ TileRow<kWidth>* values(int buffer) const { return keys(buffer) + kKeys; }
  __device__ typename Tiles::Rows own_rows(int tile) const { return {own(tile), warp_row<kWarpRows>()}; }

  /// Stores the warp's rows. `to` is the row of its first query.
  template <class E>
  __device__ void store(uint16_t* to, int64_t stride, const WarpSums<Tiles::kStrips, kWidth>& sums,
                        float factor) const {
    const HeadRowsView at{stride, warp_queries(), static_cast<int>(s_.head_width), aligned_};
    store_sums<E, kWidth, Tiles::kStrips>(to, own(0) + warp_row<kWarpRows>(), at, sums, factor);
  }

 private:
  template <int kRows>
  __device__ TileLoader<kWidth, kRows> loader(const void* data, int64_t offset, int64_t stride) const {
    return {static_cast<const uint16_t*>(data) + offset, stride, static_cast<int>(s_.head_width), aligned_};
  }
  __device__ int sequence() const { return static_cast<int>(s_.sequence); }

  const AttentionShape& s_;
  bool aligned_;
  int head_, first_;
  TileLoader<kWidth, kKeys> keys_from_;
};

}  // namespace aliquot::cuda
