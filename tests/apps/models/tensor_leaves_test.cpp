// Tests that the leaves of the ranks of every tensor group are those of a group of 8 ranks.
#include <array>
#include <gtest/gtest.h>

#include "apps/models/tensor_part.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

ModelShape shape_of(int64_t kv_heads, int64_t queries_of_each, int64_t hidden, int64_t vocabulary) {
  ModelShape shape;
  shape.family = ModelFamily::kLlama;
  shape.kv_heads = kv_heads;
  shape.heads = kv_heads * queries_of_each;
  shape.width = 4 * shape.heads;
  shape.hidden = hidden;
  shape.vocabulary = vocabulary;
  return shape;
}

/// Returns the lengths of all leaves of a group, in the order of ranks. Expects that the leaves of a rank cover its
/// part without gaps.
std::vector<std::array<int64_t, 4>> leaf_lengths(const ModelShape& shape, int ranks) {
  std::vector<std::array<int64_t, 4>> all;
  for (int rank = 0; rank < ranks; ++rank) {
    const TensorGroup group{.ranks = ranks, .rank = rank, .fixed_leaves = true};
    const TensorPart part = tensor_part(shape, group, 16);
    std::array<int64_t, 4> end{};
    for (const TensorLeaf& leaf : tensor_leaves(shape, group)) {
      const std::array ranges{leaf.heads, leaf.kv_heads, leaf.hidden, leaf.entries};
      auto& lengths = all.emplace_back();
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        EXPECT_EQ(ranges[i].first, end[i]) << "rank " << rank << " of " << ranks;
        end[i] += ranges[i].count;
        lengths[i] = ranges[i].count;
      }
    }
    EXPECT_EQ(end, (std::array{part.heads, part.kv_heads, part.hidden, part.entries})) << rank << " of " << ranks;
  }
  return all;
}

TEST(TensorLeaves, AreTheSameForEveryNumberOfRanks) {
  for (const int64_t kv_heads : {1, 2, 3, 5, 8, 9, 12}) {
    for (const int64_t hidden : {5, 8, 99, 128, 11008}) {
      for (const int64_t vocabulary : {3, 8, 251, 50257}) {
        const ModelShape shape = shape_of(kv_heads, 3, hidden, vocabulary);
        const auto expected = leaf_lengths(shape, 1);
        EXPECT_EQ(expected.size(), 8U);
        for (const int ranks : {2, 4, 8}) {
          if (ranks <= kv_heads) {
            EXPECT_EQ(leaf_lengths(shape, ranks), expected) << ranks << " ranks, " << kv_heads << " heads";
          }
        }
      }
    }
  }
}

/// Returns the global ranges of the leaves of rows.
std::vector<std::pair<int64_t, int64_t>> row_ranges(int ranks, bool divides, int64_t rows) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (int rank = 0; rank < (divides ? ranks : 1); ++rank) {
    const TensorGroup group{.ranks = ranks, .rank = rank, .sequence_parallel = divides, .fixed_leaves = true};
    const int64_t first_row = tensor_part(shape_of(8, 1, 64, 64), group, rows).first_row;
    for (const auto& [first, count] : row_leaves(group, rows))
      all.emplace_back(first_row + first, first_row + first + count);
  }
  return all;
}

TEST(TensorLeaves, OfRowsAreTheSameForEveryNumberOfRanks) {
  for (const int64_t rows : {1, 4, 8, 12, 17, 24, 1000}) {
    const auto expected = row_ranges(1, false, rows);
    ASSERT_EQ(expected.size(), 8U);
    for (const int ranks : {2, 4, 8}) {
      EXPECT_EQ(row_ranges(ranks, false, rows), expected) << ranks;
      const TensorGroup group{.ranks = ranks, .sequence_parallel = true, .fixed_leaves = true};
      if (rows % ranks == 0) {
        EXPECT_EQ(row_ranges(ranks, true, rows), expected) << ranks << " ranks, " << rows << " rows";
        check_row_leaves(group, rows);
      } else {
        EXPECT_NE(test::usage_error_message([&] { check_row_leaves(group, rows); }).find("must be a multiple"),
                  std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace aliquot
