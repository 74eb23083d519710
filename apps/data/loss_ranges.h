#pragma once
// The tokens of a file whose loss counts: a sorted list of ranges in the file.

#include <cstdint>
#include <filesystem>
#include <span>

#include "apps/data/input_file.h"

namespace aliquot {

/// The position of the dataset `loss_ranges` in a file: `count` pairs of 64-bit integers, the first token and the token
/// after the last of each range.
struct RangeLayout {
  int64_t offset_bytes = 0;
  int64_t count = 0;
};

/// Reads the ranges from the file when they are needed. Several threads may call all functions at the same time.
class LossRanges {
 public:
  /// The file must outlive this object. Throws UsageError if the file is shorter than the layout requires, if there is
  /// no range, or if the ranges are empty, not in ascending order, or outside [0, token_count).
  LossRanges(const InputFile& file, const RangeLayout& layout, int64_t token_count, const std::filesystem::path& path);

  /// The number of tokens in [first, first + count) that are in a range.
  int64_t count_tokens(int64_t first, int64_t count) const;
  /// Sets targets[i] to kIgnoredTarget if token first + i is in no range.
  void ignore_others(int64_t first, std::span<int32_t> targets) const;

 private:
  struct Range {
    int64_t begin, end;
  };
  static constexpr int64_t kRangeBytes = sizeof(Range);
  static constexpr int64_t kPart = 4096;  // ranges that the constructor reads at once

  Range at(int64_t index) const;
  /// Calls visit(begin, end) for the intersections of [first, end) with the ranges, in order.
  template <typename Visit>
  void for_each_within(int64_t first, int64_t end, Visit&& visit) const;

  const InputFile& file_;
  RangeLayout layout_;
};

}  // namespace aliquot
