#include "sharding/split.h"

#include <algorithm>
#include <fmt/format.h>

namespace aliquot {

std::string Split::defect(const std::vector<int64_t>& shape) const {
  if (dimension == -1) return parts.empty() ? "" : "Split::parts is set, but Split::dimension is -1";
  if (dimension < 0 || dimension >= static_cast<int>(shape.size()))
    return fmt::format("Split::dimension is {}, but the parameter has {} dimensions", dimension, shape.size());
  const int64_t extent = shape[static_cast<std::size_t>(dimension)];
  const auto wrong_sum = [&] {
    return fmt::format("the parts do not add up to the extent of dimension {}, which is {}", dimension, extent);
  };
  int64_t sum = 0;
  for (const DimensionPart& part : parts) {
    if (part.length < 1 || part.unit < 1 || part.length % part.unit != 0)
      return fmt::format("a part has length {} and unit {}: expected a length that is a multiple of the unit",
                         part.length, part.unit);
    if (part.length > extent - sum) return wrong_sum();
    sum += part.length;
  }
  if (!parts.empty() && sum != extent) return wrong_sum();
  return {};
}

std::pair<int64_t, int64_t> rank_range(int64_t count, int rank, int ranks) {
  // The quotient and the remainder are multiplied separately, so that large counts do not overflow.
  const auto bound = [&](int r) { return count / ranks * r + count % ranks * r / ranks; };
  return {bound(rank), bound(rank + 1)};
}

Slice::Slice(std::vector<int64_t> shape, const Split& split, int rank, int ranks) : shape_(std::move(shape)) {
  const bool is_split = split.dimension >= 0 && ranks > 1;
  const auto dimension = static_cast<std::size_t>(is_split ? split.dimension : 0);
  if (!shape_.empty()) full_extent_ = shape_[dimension];
  for (std::size_t d = 0; d < shape_.size(); ++d) (d < dimension ? outer_ : inner_) *= d == dimension ? 1 : shape_[d];
  if (!is_split) {
    ranges_ = {{0, 0, full_extent_}};
    local_extent_ = full_extent_;
    return;
  }
  const std::vector<DimensionPart> parts = split.parts.empty() ? std::vector<DimensionPart>{full_extent_} : split.parts;
  int64_t part_begin = 0;
  local_extent_ = 0;
  for (const DimensionPart& part : parts) {
    const auto [first, end] = rank_range(part.length / part.unit, rank, ranks);
    add_range({part_begin + first * part.unit, local_extent_, (end - first) * part.unit});
    local_extent_ += (end - first) * part.unit;
    part_begin += part.length;
  }
  shape_[dimension] = local_extent_;
}

/// Ranges that are adjacent in the full parameter become one range.
void Slice::add_range(const Range& range) {
  if (range.count == 0) return;
  if (!ranges_.empty() && ranges_.back().full + ranges_.back().count == range.full) {
    ranges_.back().count += range.count;
  } else {
    ranges_.push_back(range);
  }
}

std::vector<SliceRuns> Slice::runs(int64_t begin, int64_t end) const {
  std::vector<SliceRuns> runs;
  end = std::min(end, element_count());
  if (begin >= end) return runs;
  if (local_extent_ == full_extent_) return {{begin, begin, end - begin}};
  const int64_t row = local_extent_ * inner_;
  const int64_t first_full = (begin + row - 1) / row, last_full = end / row;  // complete rows
  if (begin < first_full * row) add_runs_of_row(first_full - 1, begin, std::min(end, first_full * row), runs);
  for (const Range& range : ranges_) {
    if (first_full >= last_full) break;
    const int64_t run = range.count * inner_, rows = last_full - first_full;
    SliceRuns& added = runs.emplace_back();
    added.full = (first_full * full_extent_ + range.full) * inner_;
    added.local = first_full * row + range.local * inner_;
    added.count = rows * run;
    if (rows > 1) added.run = run, added.stride = full_extent_ * inner_, added.local_stride = row;
  }
  if (last_full >= first_full && last_full * row < end) add_runs_of_row(last_full, last_full * row, end, runs);
  return runs;
}

/// Adds elements [begin, end) of the slice, which are in one row.
void Slice::add_runs_of_row(int64_t row, int64_t begin, int64_t end, std::vector<SliceRuns>& runs) const {
  for (const Range& range : ranges_) {
    const int64_t local = (row * local_extent_ + range.local) * inner_;
    const int64_t from = std::max(begin, local), to = std::min(end, local + range.count * inner_);
    if (from < to) runs.push_back({(row * full_extent_ + range.full) * inner_ + from - local, from, to - from});
  }
}

std::vector<int64_t> largest_slice_shape(const std::vector<int64_t>& shape, const Split& split, int ranks) {
  std::vector<int64_t> largest;
  for (int rank = 0; rank < ranks; ++rank) largest = std::max(largest, Slice(shape, split, rank, ranks).shape());
  return largest;
}

}  // namespace aliquot
