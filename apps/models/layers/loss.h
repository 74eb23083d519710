#pragma once
// The language model's head: the product with the vocabulary and the cross-entropy, fused in tiles of the vocabulary.

#include <cstdint>

#include "kernels/formats/values.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// Vocabulary entries of one tile, over all rows: measured, tiles of 64 rows over all entries ran 1.7 times slower.
inline constexpr int64_t kLossTileEntries = 2096;

/// `rows` hidden states of `width`, a table of `entries` x `width`, and the entry each row should have predicted.
struct LossShape {
  int64_t rows = 0, width = 0, entries = 0;
  bool keep_logits = true;  // or make each tile again in backward: one tile of memory, one product more

  int64_t tile_entries() const { return entries < kLossTileEntries ? entries : kLossTileEntries; }
  int64_t tile_count() const { return (entries + kLossTileEntries - 1) / kLossTileEntries; }
  int64_t logits_elements() const { return rows * (keep_logits ? entries : tile_entries()); }
};

/// The loss is computed in fp32; logits kept in 16 bits are made in fp32, tile by tile.
struct LossBuffers {
  Values logits;              // logits_elements(), of the table's type
  float* maxima = nullptr;    // rows, kept for backward, as are the log_sums
  float* log_sums = nullptr;  // rows
  float* scratch = nullptr;   // 2 * rows
  // Of 16 bits alone:
  float* tile = nullptr;         // rows x tile_entries()
  float* tile_maxima = nullptr;  // rows x tile_count(), kept for backward
  // Of products: see product.h.
  float* product_scratch = nullptr;
};

/// The sum over rows of -log p(target), in double, from first row to last.
struct LossForward {
  LossShape shape;
  ConstValues hidden, table;
  const int32_t* targets = nullptr;
  LossBuffers buffers;
};
double loss_forward(ThreadPool& pool, const LossForward& a);

/// Gradients of factor * that sum: d_hidden is assigned, in fp32; d_table is written once, tile by tile, or added to.
/// Overwrites the logits.
struct LossBackward {
  LossShape shape;
  ConstValues hidden, table;
  const int32_t* targets = nullptr;
  LossBuffers buffers;
  float factor = 1.0f;
  float* d_hidden = nullptr;
  Values d_table;
  bool add_table = false;
};
void loss_backward(ThreadPool& pool, const LossBackward& a);

}  // namespace aliquot
