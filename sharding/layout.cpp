#include "sharding/layout.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_set>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

// Limit on the elements of a flat buffer including padding, so that no offset overflows.
constexpr int64_t kMaxElements = int64_t{1} << 62;

int64_t blocks(int64_t element_count) { return (element_count + kBlockElements - 1) / kBlockElements; }

void check_uniform_tensors(const std::vector<TensorSpec>& tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw UsageError(fmt::format("two tensors of one unit are named {}: give each a unique name", tensor.name));
    }
    if (tensor.dtype != tensors.front().dtype || tensor.trainable != tensors.front().trainable) {
      throw UsageError(fmt::format("tensors {} and {} cannot share a flat buffer: their dtype or trainability differs",
                                   tensors.front().name, tensor.name));
    }
  }
}

}  // namespace

int64_t TensorSpec::element_count() const {
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) throw UsageError(fmt::format("tensor {} has the extent {}: expected 0 or more", name, extent));
    empty = empty || extent == 0;
  }
  if (empty) return 0;  // even if the product of the other extents would overflow
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (count > kMaxElements / extent) throw UsageError(fmt::format("tensor {} has more than 2^62 elements", name));
    count *= extent;
  }
  return count;
}

FlatLayout::FlatLayout(std::vector<TensorSpec> tensors, int rank_count, int parts_per_shard, int64_t red_zone_blocks)
    : tensors_(std::move(tensors)), rank_count_(rank_count) {
  if (rank_count < 1) throw UsageError(fmt::format("rank_count is {}: expected at least 1", rank_count));
  check_uniform_tensors(tensors_);
  int64_t block_count = 0;
  for (const TensorSpec& tensor : tensors_) {
    block_count += red_zone_blocks;
    tensor_offsets_.push_back(block_count * kBlockElements);
    block_count += blocks(tensor.element_count());
    if (block_count > kMaxElements / kBlockElements - int64_t{rank_count} * parts_per_shard)
      throw UsageError(fmt::format("the unit of tensor {} has more than 2^62 elements", tensor.name));
    element_count_ += tensor.element_count();
  }
  block_count += red_zone_blocks;
  const int64_t part_count = int64_t{rank_count} * parts_per_shard;
  shard_count_ = (block_count + part_count - 1) / part_count * parts_per_shard * kBlockElements;
}

std::vector<Piece> FlatLayout::pieces(int rank) const {
  const int64_t begin = rank * shard_count_, end = begin + shard_count_;
  std::vector<Piece> pieces;
  // The first tensor that can overlap the shard is the last one that starts at or before the shard.
  auto first = std::upper_bound(tensor_offsets_.begin(), tensor_offsets_.end(), begin);
  if (first != tensor_offsets_.begin()) --first;
  for (auto t = static_cast<int32_t>(first - tensor_offsets_.begin()); t < static_cast<int32_t>(tensors_.size()); ++t) {
    const int64_t tensor_begin = tensor_offsets_[t];
    if (tensor_begin >= end) break;
    const int64_t piece_begin = std::max(begin, tensor_begin);
    const int64_t piece_end = std::min(end, tensor_begin + tensors_[t].element_count());
    if (piece_begin >= piece_end) continue;
    pieces.push_back({t, piece_begin - tensor_begin, piece_begin - begin, piece_end - piece_begin});
  }
  return pieces;
}

std::vector<Gap> FlatLayout::gaps() const {
  std::vector<Gap> gaps;
  int64_t end = 0;  // end of the previous tensor
  const auto add = [&](int32_t after, int64_t next) {
    if (next > end) gaps.push_back({after, end, next});
  };
  for (int32_t t = 0; t < static_cast<int32_t>(tensors_.size()); ++t) {
    add(t - 1, tensor_offsets_[t]);
    end = tensor_offsets_[t] + tensors_[t].element_count();
  }
  add(static_cast<int32_t>(tensors_.size()) - 1, flat_count());
  return gaps;
}

Place FlatLayout::place(int32_t tensor, int64_t element) const {
  const int64_t flat = tensor_offsets_[tensor] + element;
  return {static_cast<int>(flat / shard_count_), flat % shard_count_};
}

}  // namespace aliquot
