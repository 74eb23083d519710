#include "apps/models/tensor_part.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

int64_t length(std::pair<int64_t, int64_t> range) { return range.second - range.first; }

/// The part of the heads. If ranks share heads of keys and values, each rank has queries of one of these heads.
void set_heads(TensorPart& part, const ModelShape& shape, const TensorGroup& group) {
  if (shares_kv_heads(shape, group)) {
    part.heads = length(rank_range(shape.heads, group.rank, group.ranks));
    part.kv_heads = 1;
    part.first_kv_head = group.rank / (group.ranks / shape.kv_heads);
    return;
  }
  const auto range = rank_range(shape.kv_heads, group.rank, group.ranks);
  part.kv_heads = length(range);
  part.heads = part.kv_heads * (shape.heads / shape.kv_heads);
}

/// Hidden elements are divided in units, so that the parts of large models have extents for which GPUs have fast
/// products. The unit does not depend on the number of ranks, up to 8 of them.
int64_t hidden_unit(const ModelShape& shape, const TensorGroup& group) {
  constexpr int64_t kLargest = 64, kRanks = 8;
  int64_t unit = kLargest;
  while (shape.hidden % unit != 0 || shape.hidden / unit < std::max<int64_t>(group.ranks, kRanks)) {
    if (unit == 1) break;
    unit /= 2;
  }
  return unit;
}

/// Returns the range of a leaf in the part of a rank. `unit` is the number of indices in each of the `count` units that
/// ranks divide.
LeafRange leaf_range(int64_t count, int64_t unit, int leaf, const TensorGroup& group) {
  const auto [first, end] = rank_range(count, leaf, kTensorLeaves);
  return {unit * (first - rank_range(count, group.rank, group.ranks).first), unit * (end - first)};
}

}  // namespace

std::vector<TensorLeaf> tensor_leaves(const ModelShape& shape, const TensorGroup& group) {
  const int count = kTensorLeaves / group.ranks;
  const int64_t unit = hidden_unit(shape, group), queries = shape.heads / shape.kv_heads;
  std::vector<TensorLeaf> leaves;
  for (int leaf = group.rank * count; leaf < (group.rank + 1) * count; ++leaf) {
    leaves.push_back({.heads = leaf_range(shape.kv_heads, queries, leaf, group),
                      .kv_heads = leaf_range(shape.kv_heads, 1, leaf, group),
                      .hidden = leaf_range(shape.hidden / unit, unit, leaf, group),
                      .entries = leaf_range(shape.vocabulary, 1, leaf, group)});
  }
  return leaves;
}

std::vector<LeafRange> row_leaves(const TensorGroup& group, int64_t rows) {
  const TensorGroup divided = group.divides_rows() ? group : TensorGroup{};
  const int count = kTensorLeaves / divided.ranks;
  std::vector<LeafRange> leaves;
  for (int leaf = divided.rank * count; leaf < (divided.rank + 1) * count; ++leaf)
    leaves.push_back(leaf_range(rows, 1, leaf, divided));
  return leaves;
}

bool shares_kv_heads(const ModelShape& shape, const TensorGroup& group) { return shape.kv_heads < group.ranks; }

TensorPart tensor_part(const ModelShape& shape, const TensorGroup& group, int64_t rows) {
  TensorPart part;
  set_heads(part, shape, group);
  const int64_t unit = hidden_unit(shape, group);
  part.hidden = unit * length(rank_range(shape.hidden / unit, group.rank, group.ranks));
  const auto entries = rank_range(shape.vocabulary, group.rank, group.ranks);
  part.first_entry = entries.first;
  part.entries = length(entries);
  part.rows = rows;
  if (!group.divides_rows()) return part;
  // UseCollective defines these ranges.
  const int64_t each = (rows + group.ranks - 1) / group.ranks;
  part.first_row = std::min(rows, group.rank * each);
  part.rows = std::min(rows, part.first_row + each) - part.first_row;
  return part;
}

TensorPart largest_tensor_part(const ModelShape& shape, const TensorGroup& group, int64_t rows) {
  TensorPart largest;
  for (int rank = 0; rank < group.ranks; ++rank) {
    TensorGroup one = group;
    one.rank = rank;
    const TensorPart part = tensor_part(shape, one, rows);
    largest.heads = std::max(largest.heads, part.heads);
    largest.kv_heads = std::max(largest.kv_heads, part.kv_heads);
    largest.hidden = std::max(largest.hidden, part.hidden);
    largest.entries = std::max(largest.entries, part.entries);
  }
  const int64_t each = (rows + group.ranks - 1) / group.ranks;
  largest.rows = group.divides_rows() ? each : each * group.ranks;
  return largest;
}

void check_tensor_group(const ModelShape& shape, const TensorGroup& group) {
  const auto check_at_least = [&](const char* what, int64_t count) {
    if (count >= group.ranks) return;
    throw UsageError(fmt::format("--tensor {} is more than the {} {} of the model: expected at most {}.", group.ranks,
                                 count, what, count));
  };
  check_at_least("attention heads", shape.heads);
  check_at_least("hidden elements", shape.hidden);
  check_at_least("vocabulary entries", shape.vocabulary);
  if (group.fixed_leaves && group.ranks > 1 && shape.lora.exists()) {
    throw UsageError(
        "--lora with --tensor cannot be combined with --reproducible: the sums of adapters depend on the number of "
        "ranks "
        "of a tensor group; leave one of them out.");
  }
  if (group.fixed_leaves && (group.ranks > kTensorLeaves || kTensorLeaves % group.ranks != 0))
    throw UsageError(
        fmt::format("--tensor {} cannot be combined with --reproducible: expected 1, 2, 4 or 8.", group.ranks));
  if (group.fixed_leaves && shares_kv_heads(shape, group)) {
    throw UsageError(fmt::format(
        "--tensor {} is more than the {} key and value heads of the model, and --reproducible needs at least "
        "one for each rank: use a smaller --tensor.",
        group.ranks, shape.kv_heads));
  }
  if (!shares_kv_heads(shape, group) || group.ranks % shape.kv_heads == 0) return;
  throw UsageError(fmt::format(
      "--tensor {} does not fit the {} key and value heads of the model: expected at most {}, or a multiple of it.",
      group.ranks, shape.kv_heads, shape.kv_heads));
}

void check_row_leaves(const TensorGroup& group, int64_t rows) {
  if (!group.fixed_leaves || !group.divides_rows() || rows % group.ranks == 0) return;
  throw UsageError(
      fmt::format("a micro-batch has {} tokens. With --reproducible and --sequence-parallel, the number of tokens must "
                  "be a multiple of --tensor {}: change --micro-batch or --sequence, or use --sequence-parallel off.",
                  rows, group.ranks));
}

TensorDeclarations::TensorDeclarations(const ModelShape& shape, const TensorGroup& group) {
  if (group.ranks == 1) return;
  const bool shares = shares_kv_heads(shape, group);
  const int64_t head = shape.head_width(), queries_of_unit = shares ? 1 : shape.heads / shape.kv_heads;
  const DimensionPart queries{shape.query_width(), queries_of_unit * head}, keys{shape.key_width(), head};
  table = {Split::rows()};
  // With fixed leaves, the model itself adds the gradients of norms and positions over the ranks, in fp32.
  norm = {{}, group.divides_rows() && !group.fixed_leaves};
  packed_columns = {Split::columns({queries, keys, keys})};
  packed_rows = {Split::rows({queries, keys, keys})};
  query_rows = {Split::rows({queries})};
  query_columns = {Split::columns({queries})};
  kv_rows = shares ? TensorDeclaration{{}, true} : TensorDeclaration{Split::rows({keys})};
  head_norm = {{}, !group.fixed_leaves};
  const DimensionPart hidden{shape.hidden, hidden_unit(shape, group)};
  hidden_rows = {Split::rows({hidden})};
  hidden_columns = {Split::columns({hidden})};
}

}  // namespace aliquot
