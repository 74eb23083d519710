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

}  // namespace

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
    const TensorPart part = tensor_part(shape, {group.ranks, rank, group.sequence_parallel}, rows);
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
  if (!shares_kv_heads(shape, group) || group.ranks % shape.kv_heads == 0) return;
  throw UsageError(fmt::format(
      "--tensor {} does not fit the {} key and value heads of the model: expected at most {}, or a multiple of it.",
      group.ranks, shape.kv_heads, shape.kv_heads));
}

TensorDeclarations::TensorDeclarations(const ModelShape& shape, const TensorGroup& group) {
  if (group.ranks == 1) return;
  const bool shares = shares_kv_heads(shape, group);
  const int64_t head = shape.head_width(), queries_of_unit = shares ? 1 : shape.heads / shape.kv_heads;
  const DimensionPart queries{shape.query_width(), queries_of_unit * head}, keys{shape.key_width(), head};
  table = {Split::rows()};
  norm = {{}, group.divides_rows()};
  packed_columns = {Split::columns({queries, keys, keys})};
  packed_rows = {Split::rows({queries, keys, keys})};
  query_rows = {Split::rows({queries})};
  query_columns = {Split::columns({queries})};
  kv_rows = shares ? TensorDeclaration{{}, true} : TensorDeclaration{Split::rows({keys})};
  head_norm = {{}, true};
  const DimensionPart hidden{shape.hidden, hidden_unit(shape, group)};
  hidden_rows = {Split::rows({hidden})};
  hidden_columns = {Split::columns({hidden})};
}

}  // namespace aliquot
