#pragma once
// How layers on a GPU divide long sums, and the scratch memory for their partial sums. Plans need the sizes on machines
// without a GPU too.

#include <algorithm>
#include <cstdint>

namespace aliquot {

/// The rows of a matrix whose columns are summed are divided into ranges, and the ranges into kRangeGroups groups. The
/// division depends only on the number of rows. So the bits of a sum do not depend on the number of columns, which
/// ranks may divide.
struct RowRanges {
  int64_t rows = 0;  // of each range; the last one may have fewer
  int count = 1;
  int in_group = 1;  // ranges of each group; the last groups may have fewer or none
};

inline constexpr int kRangeGroups = 8;
/// The rows of a range are divided among this number of threads.
inline constexpr int kRowLanes = 16;

/// Returns ranges of 64 or more rows: up to 128 ranges of at most 512 rows, or up to 1024 ranges of at least 512 rows.
inline RowRanges row_ranges(int64_t rows) {
  const auto rows_of_lane = [&](int64_t most_ranges) { return (rows - 1) / (most_ranges * kRowLanes) + 1; };
  const int64_t lane_rows = std::max<int64_t>({4, std::min<int64_t>(rows_of_lane(128), 32), rows_of_lane(1024)});
  RowRanges ranges;
  ranges.rows = lane_rows * kRowLanes;
  ranges.count = rows < 1 ? 1 : static_cast<int>((rows - 1) / ranges.rows + 1);
  ranges.in_group = (ranges.count + kRangeGroups - 1) / kRangeGroups;
  return ranges;
}

/// The sum of each range and column. A single range needs no scratch.
inline int64_t column_sums_scratch_elements(int64_t rows, int64_t columns) {
  const int ranges = row_ranges(rows).count;
  return ranges == 1 ? 0 : ranges * columns;
}

/// The gradient of an embedding adds the rows of each token in segments of this many rows. The last segment of a token
/// may have fewer.
inline constexpr int64_t kSegmentRows = 64;

/// Scratch for the sums of all segments of tokens that have more than one. In the sorted rows, at most two such
/// segments begin within any kSegmentRows consecutive rows: one full segment and one shorter segment.
inline int64_t embedding_scratch_elements(int64_t rows, int64_t width) {
  return rows <= kSegmentRows ? 0 : 2 * ((rows + kSegmentRows - 1) / kSegmentRows) * width;
}

}  // namespace aliquot
