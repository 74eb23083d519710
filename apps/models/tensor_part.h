#pragma once
// How the ranks of a tensor group divide a transformer.

#include <cstdint>
#include <vector>

#include "apps/models/shape.h"
#include "sharding/split.h"

namespace aliquot {

/// The tensor group of a model's rank: see EngineOptions::tensor.
struct TensorGroup {
  int ranks = 1, rank = 0;
  /// Whether the ranks also divide the rows of the residual stream.
  bool sequence_parallel = false;
  /// Whether results have the same bits for 1, 2, 4 and 8 ranks. The layers then add over a dimension that ranks can
  /// divide in a binary tree with kTensorLeaves leaves, for every number of ranks.
  bool fixed_leaves = false;

  bool divides_rows() const { return sequence_parallel && ranks > 1; }
};

/// The part of a transformer that a rank computes: heads of attention, elements of the hidden layer, entries of the
/// vocabulary, and rows of the residual stream.
struct TensorPart {
  int64_t heads = 0, kv_heads = 0, first_kv_head = 0, hidden = 0, entries = 0, first_entry = 0, rows = 0, first_row = 0;
};

/// Returns the part of a rank. `rows` is the number of rows of a micro-batch.
TensorPart tensor_part(const ModelShape& shape, const TensorGroup& group, int64_t rows);
/// Returns the sizes that suffice for the parts of all ranks. A sum of rows over the ranks needs memory for the same
/// number of rows of each rank, so `rows` may be larger than that of a micro-batch.
TensorPart largest_tensor_part(const ModelShape& shape, const TensorGroup& group, int64_t rows);

/// With TensorGroup::fixed_leaves: the number of parts of each dimension, of which a rank has the same number as the
/// other ranks. Part i of the 8 is the part of rank i in a group of 8 ranks.
inline constexpr int kTensorLeaves = 8;

struct LeafRange {
  int64_t first = 0, count = 0;
};

/// A leaf of the part of a rank. Indices are relative to the part.
struct TensorLeaf {
  LeafRange heads, kv_heads, hidden, entries;
};

/// Returns the leaves of a rank's part, in order.
std::vector<TensorLeaf> tensor_leaves(const ModelShape& shape, const TensorGroup& group);
/// Returns the leaves of the rows of a rank, as ranges of its rows. If ranks do not divide the rows, each rank has all
/// leaves.
std::vector<LeafRange> row_leaves(const TensorGroup& group, int64_t rows);

/// Whether several ranks have the same head of keys and values, because there are fewer of these heads than ranks.
bool shares_kv_heads(const ModelShape& shape, const TensorGroup& group);

/// Throws UsageError if the ranks of the group cannot divide a model of this shape.
void check_tensor_group(const ModelShape& shape, const TensorGroup& group);
/// Throws UsageError if the leaves of the rows of a micro-batch are not parts of the rows of ranks.
void check_row_leaves(const TensorGroup& group, int64_t rows);

/// A declaration of how the ranks of a tensor group hold a parameter and its gradient: see ParameterSpec.
struct TensorDeclaration {
  Split split = {};
  bool partial_gradient = false;
};

/// The declarations of all kinds of parameters of GPT-2 and Llama. GPT-2 stores the weight of a linear layer as
/// [inputs, outputs], and Llama as [outputs, inputs]. A bias is divided as the rows of [outputs, inputs].
struct TensorDeclarations {
  TensorDeclarations(const ModelShape& shape, const TensorGroup& group);

  TensorDeclaration table;                        // the token embedding, and the head
  TensorDeclaration norm;                         // norms and positions: the gradient is partial if ranks divide rows
  TensorDeclaration packed_columns, packed_rows;  // queries, keys and values
  TensorDeclaration query_rows, query_columns;    // queries, or the output of attention, which has the same heads
  TensorDeclaration kv_rows;                      // keys or values
  TensorDeclaration head_norm;                    // norms of queries and keys
  TensorDeclaration hidden_rows, hidden_columns;
};

}  // namespace aliquot
