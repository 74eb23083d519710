#pragma once
// How the ranks of a tensor group divide a parameter.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// Consecutive indices of the split dimension, which the ranks divide in units of `unit` indices. For example, a unit
/// is the rows of one attention head.
struct DimensionPart {
  DimensionPart(int64_t length_of_part, int64_t length_of_unit = 1) : length(length_of_part), unit(length_of_unit) {}

  int64_t length, unit;

  friend bool operator==(const DimensionPart&, const DimensionPart&) = default;
};

/// The dimension of a parameter that the ranks of a tensor group divide. Each rank has a slice: its range of each part,
/// one after another. See rank_range().
struct Split {
  int dimension = -1;                     // -1: not split, so every rank has the full parameter
  std::vector<DimensionPart> parts = {};  // empty: the whole dimension is one part, divided in units of 1

  /// Splits the first dimension. A packed matrix with three parts of C rows each: Split::rows({C, C, C}).
  static Split rows(std::vector<DimensionPart> parts = {}) { return {0, std::move(parts)}; }
  /// Splits the second dimension.
  static Split columns(std::vector<DimensionPart> parts = {}) { return {1, std::move(parts)}; }

  /// Returns what is wrong with the split of a parameter of this shape, or an empty string.
  std::string defect(const std::vector<int64_t>& shape) const;

  friend bool operator==(const Split&, const Split&) = default;
};

/// Returns the range [first, second) of `count` units that rank `rank` of `ranks` ranks has. The ranges of all ranks
/// contain each unit once. Their lengths differ by at most 1, and are 0 for some ranks if there are fewer units than
/// ranks.
std::pair<int64_t, int64_t> rank_range(int64_t count, int rank, int ranks);

/// Elements of a slice, in equal runs of consecutive elements. `full` and `local` are the index of the first element in
/// the full parameter and in the slice. The runs start `stride` elements apart in the full parameter, and
/// `local_stride` elements apart in the slice.
struct SliceRuns {
  int64_t full = 0, local = 0, count = 0;
  int64_t run = 0;  // elements of each run; 0: all elements are one run
  int64_t stride = 0, local_stride = 0;

  friend bool operator==(const SliceRuns&, const SliceRuns&) = default;
};

/// The slice of a parameter that one rank of a tensor group has: a dense tensor with a shorter split dimension.
class Slice {
 public:
  /// Requires that split.defect(shape) is empty.
  Slice(std::vector<int64_t> shape, const Split& split, int rank, int ranks);

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t element_count() const { return outer_ * local_extent_ * inner_; }
  /// Returns the runs of elements [begin, end) of the slice. Ignores elements beyond the end of the slice. The list has
  /// at most three entries for each part of the split, for any number of rows.
  std::vector<SliceRuns> runs(int64_t begin, int64_t end) const;

 private:
  struct Range {
    int64_t full, local, count;  // in indices of the split dimension
  };
  void add_range(const Range& range);
  void add_runs_of_row(int64_t row, int64_t begin, int64_t end, std::vector<SliceRuns>& runs) const;

  std::vector<int64_t> shape_;
  std::vector<Range> ranges_;
  int64_t outer_ = 1, full_extent_ = 1, local_extent_ = 1, inner_ = 1;  // the split dimension is between the others
};

/// Returns the shape of the largest slice of a parameter, over all ranks of the group.
std::vector<int64_t> largest_slice_shape(const std::vector<int64_t>& shape, const Split& split, int ranks);

}  // namespace aliquot
#pragma GCC visibility pop
