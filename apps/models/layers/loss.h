#pragma once
// The head of a language model. Computes the logits and their cross-entropy one tile of the vocabulary at a time.

#include <cstdint>

#include "kernels/formats/values.h"
#include "kernels/layers/split_layers.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// The number of vocabulary entries in one tile on a host. A tile has all rows. Tiles of 64 rows and all entries were
/// measured to be 1.7 times slower.
inline constexpr int64_t kLossTileEntries = 2096;

/// The tiles of the logits on one kind of device. In 16 bits, a host first computes each tile in fp32. A GPU computes
/// logits in the type in which they are stored.
struct LogitTiles {
  int64_t entries = kLossTileEntries;
  bool in_fp32 = false;
  /// If not 0, each tile of kept logits is a separate matrix, whose rows begin at multiples of this many elements.
  /// Products on a GPU then have the same strides, and so the same bits, whether logits are kept or computed again.
  int64_t row_multiple = 0;
};

/// `rows` hidden states of `width` elements and an embedding table of `entries` x `width`. With a vocabulary that is
/// split over ranks, the table has the entries from `first_entry` on.
struct LossShape {
  int64_t rows = 0, width = 0, entries = 0;
  bool keep_logits = true;  // false: backward recomputes the logits, so only one tile of logits needs memory
  int64_t first_entry = 0;
  int64_t logit_stride = 0;         // elements from one row of kept logits to the next; 0: entries
  int64_t tile = kLossTileEntries;  // entries in one tile
  int64_t row_multiple = 0;         // see LogitTiles

  int64_t tile_entries() const { return entries < tile ? entries : tile; }
  int64_t tile_count() const { return (entries + tile - 1) / tile; }
  /// The elements from one row of a tile with `columns` entries to the next.
  int64_t tile_stride(int64_t columns) const {
    if (row_multiple != 0) return (columns + row_multiple - 1) / row_multiple * row_multiple;
    return keep_logits ? stride() : columns;
  }
  int64_t stride() const { return logit_stride == 0 ? entries : logit_stride; }
  /// The memory of the logits, in elements of each row.
  int64_t logits_per_row() const {
    if (!keep_logits) return tile_stride(tile_entries());
    if (row_multiple == 0) return stride();
    return entries / tile * tile_stride(tile) + tile_stride(entries % tile);
  }
  int64_t logits_elements() const { return rows * logits_per_row(); }
};

struct LossBuffers {
  Values logits;              // logits_elements() elements of the table's type
  float* maxima = nullptr;    // one value per row, saved for backward
  float* log_sums = nullptr;  // one value per row, saved for backward
  float* scratch = nullptr;   // two values per row
  // The next two arrays exist only if LogitTiles::in_fp32 is set. Each tile is then computed in `tile` and rounded.
  float* tile = nullptr;             // rows x tile_entries()
  float* tile_maxima = nullptr;      // rows x tile_count(), saved for backward
  float* product_scratch = nullptr;  // scratch memory of matrix products: see product.h
};

/// Returns the sum over rows of -log p(target), added in double from the first row to the last. Rows whose target is
/// kIgnoredTarget add nothing.
struct LossForward {
  LossShape shape;
  ConstValues hidden, table;
  const int32_t* targets = nullptr;
  LossBuffers buffers;
};
double loss_forward(ThreadPool& pool, const LossForward& a);

/// Computes the statistics of one part of a split vocabulary at `part`: see SplitParts.
void loss_statistics(ThreadPool& pool, const LossForward& a, float* part);
/// Returns the loss, and computes `maxima` and `log_sums` of a.buffers, from the statistics of all parts. All ranks get
/// the same bits.
double loss_of_parts(const LossForward& a, const SplitParts& parts);

/// Computes the gradients of factor * loss. Assigns d_hidden in fp32. Assigns d_table, or adds to it with add_table.
/// Does not compute a d_table without data. Overwrites the logits.
struct LossBackward {
  LossShape shape;
  ConstValues hidden, table;
  const int32_t* targets = nullptr;
  LossBuffers buffers;
  float factor = 1.0f;
  float* d_hidden = nullptr;
  Values d_table;
  bool add_table = false;
  const float* factor_on_gpu = nullptr;  // only on GPUs: if not null, replaces `factor`
};
void loss_backward(ThreadPool& pool, const LossBackward& a);

}  // namespace aliquot
