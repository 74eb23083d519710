// Tests of splits and slices against a comparison element by element.
#include "sharding/split.h"

#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace aliquot {
namespace {

TEST(RankRange, ContainsEveryUnitOnce) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{12}, (int64_t{1} << 58) - 1}) {
    for (int ranks = 1; ranks <= 7; ++ranks) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto [first, end] = rank_range(count, rank, ranks);
        EXPECT_EQ(first, next);
        EXPECT_GE(end - first, count / ranks);
        EXPECT_LE(end - first, count / ranks + 1);
        next = end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

/// The bounds for 2 and 4 ranks are also bounds for 8 ranks.
TEST(RankRange, NestsForPowersOfTwo) {
  for (int64_t count = 0; count < 50; ++count) {
    for (const int ranks : {2, 4}) {
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(rank_range(count, rank, ranks).first, rank_range(count, rank * 8 / ranks, 8).first);
    }
  }
}

/// Returns the rank of the group that has index `at` of the split dimension.
int owner(const Split& split, int64_t extent, int64_t at, int ranks) {
  int64_t begin = 0;
  for (const DimensionPart& part : split.parts.empty() ? std::vector<DimensionPart>{extent} : split.parts) {
    for (int rank = 0; rank < ranks && at < begin + part.length; ++rank) {
      const auto [first, end] = rank_range(part.length / part.unit, rank, ranks);
      if (at >= begin + first * part.unit && at < begin + end * part.unit) return rank;
    }
    begin += part.length;
  }
  return -1;
}

/// The elements of the full tensor that belong to the slice, in ascending order.
std::vector<int64_t> elements_of(const std::vector<int64_t>& shape, const Split& split, int rank, int ranks) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  int64_t inner = 1;
  for (std::size_t d = static_cast<std::size_t>(split.dimension) + 1; d < shape.size(); ++d) inner *= shape[d];
  const int64_t extent = shape[static_cast<std::size_t>(split.dimension)];
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < count; ++i) {
    if (ranks == 1 || owner(split, extent, i / inner % extent, ranks) == rank) elements.push_back(i);
  }
  return elements;
}

/// Returns the elements of the full tensor for elements [begin, end) of a slice. Expects that the runs have each of the
/// elements once.
std::vector<int64_t> full_elements(const std::vector<SliceRuns>& all, int64_t begin, int64_t end) {
  std::vector<int64_t> full(static_cast<std::size_t>(end - begin), -1);
  for (const SliceRuns& runs : all) {
    const int64_t run = runs.run == 0 ? runs.count : runs.run;
    EXPECT_EQ(runs.count % run, 0);
    for (int64_t i = 0; i < runs.count; ++i) {
      const int64_t local = runs.local + i / run * runs.local_stride + i % run;
      if (local < begin || local >= end) {
        ADD_FAILURE() << local << " is not in [" << begin << ", " << end << ")";
        continue;
      }
      int64_t& at = full[static_cast<std::size_t>(local - begin)];
      EXPECT_EQ(at, -1);
      at = runs.full + i / run * runs.stride + i % run;
    }
  }
  return full;
}

void expect_slices(const std::vector<int64_t>& shape, const Split& split) {
  ASSERT_EQ(split.defect(shape), "");
  for (int ranks = 1; ranks <= 6; ++ranks) {
    std::size_t largest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Slice slice(shape, split, rank, ranks);
      const std::vector<int64_t> expected = elements_of(shape, split, rank, ranks);
      ASSERT_EQ(slice.element_count(), std::ssize(expected));
      EXPECT_EQ(std::accumulate(slice.shape().begin(), slice.shape().end(), int64_t{1}, std::multiplies<>()),
                std::ssize(expected));
      largest = std::max(largest, expected.size());
      for (int64_t begin = 0; begin <= slice.element_count(); begin += 5) {
        for (int64_t end = begin; end <= slice.element_count() + 3; end += 4) {
          const int64_t last = std::max(begin, std::min(end, slice.element_count()));
          EXPECT_EQ(full_elements(slice.runs(begin, end), begin, last),
                    std::vector<int64_t>(expected.begin() + begin, expected.begin() + last));
          EXPECT_LE(slice.runs(begin, end).size(), 3 * std::max<std::size_t>(1, split.parts.size()));
        }
      }
    }
    const std::vector<int64_t> shape_of_largest = largest_slice_shape(shape, split, ranks);
    EXPECT_EQ(std::accumulate(shape_of_largest.begin(), shape_of_largest.end(), int64_t{1}, std::multiplies<>()),
              static_cast<int64_t>(largest));
  }
}

TEST(Slice, HasTheElementsOfItsRank) {
  expect_slices({12}, Split::rows());
  expect_slices({7, 5}, Split::rows());
  expect_slices({7, 5}, Split::columns());
  expect_slices({3, 4, 5}, {.dimension = 1, .parts = {}});
  expect_slices({3, 4, 5}, {.dimension = 2, .parts = {}});
}

TEST(Slice, DividesEachPartSeparately) {
  expect_slices({12, 3}, Split::rows({4, 4, 4}));
  expect_slices({14, 2}, Split::rows({{8, 2}, {4, 2}, 2}));
  expect_slices({3, 10}, Split::columns({{6, 3}, 4}));
}

TEST(Slice, OfAParameterThatIsNotSplitIsTheFullParameter) {
  const Slice scalar({}, {}, 1, 2), matrix({3, 4}, {}, 1, 2), alone({3, 4}, Split::columns(), 0, 1);
  EXPECT_EQ(scalar.runs(0, 9), (std::vector<SliceRuns>{{0, 0, 1}}));
  EXPECT_EQ(matrix.runs(2, 9), (std::vector<SliceRuns>{{2, 2, 7}}));
  EXPECT_EQ(alone.runs(0, 12), (std::vector<SliceRuns>{{0, 0, 12}}));
  EXPECT_EQ(matrix.shape(), (std::vector<int64_t>{3, 4}));
}

TEST(Slice, OfRandomShapesHasTheElementsOfItsRank) {
  std::mt19937 random(7);
  const auto up_to = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  for (int i = 0; i < 60; ++i) {
    std::vector<int64_t> shape;
    for (int64_t d = up_to(4); d > 0; --d) shape.push_back(up_to(6));
    Split split{.dimension = static_cast<int>(up_to(std::ssize(shape)) - 1), .parts = {}};
    int64_t& extent = shape[static_cast<std::size_t>(split.dimension)];
    if (random() % 2 == 0) {
      extent = 0;
      for (int64_t part = up_to(3); part > 0; --part) {
        const int64_t unit = up_to(3), length = unit * up_to(4);
        split.parts.push_back({length, unit});
        extent += length;
      }
    }
    expect_slices(shape, split);
  }
}

/// The number of runs does not depend on the number of rows.
TEST(Slice, OfColumnsHasFewRuns) {
  const Slice slice({8192, 8192}, Split::columns(), 3, 8);
  EXPECT_EQ(slice.runs(0, 1024 * 8192), (std::vector<SliceRuns>{{3072, 0, 1024 * 8192, 1024, 8192, 1024}}));
  EXPECT_EQ(slice.runs(1000, 8192 * 5 + 7), (std::vector<SliceRuns>{{3072 + 1000, 1000, 24},
                                                                    {3072 + 8192, 1024, 39 * 1024, 1024, 8192, 1024},
                                                                    {3072 + 40 * 8192, 40 * 1024, 7}}));
  const Slice parts({100, 12}, Split::columns({4, 8}), 1, 2);
  EXPECT_EQ(parts.runs(0, 600), (std::vector<SliceRuns>{{2, 0, 200, 2, 12, 6}, {8, 2, 400, 4, 12, 6}}));
}

TEST(Split, NamesItsDefect) {
  EXPECT_EQ(Split::rows().defect({}), "Split::dimension is 0, but the parameter has 0 dimensions");
  EXPECT_EQ(Split::columns().defect({3}), "Split::dimension is 1, but the parameter has 1 dimensions");
  EXPECT_EQ(Split::rows({4, 4}).defect({9}), "the parts do not add up to the extent of dimension 0, which is 9");
  EXPECT_EQ(Split::rows({4, 6}).defect({9}), "the parts do not add up to the extent of dimension 0, which is 9");
  for (const Split& split : {Split::rows({4, 4}), Split::rows({4, 1}), Split::rows({4, 4, 4}), Split::rows({2, 2, 3})})
    EXPECT_EQ(split.defect({4, 3}), "the parts do not add up to the extent of dimension 0, which is 4");
  EXPECT_EQ(Split::rows({{4, 3}, 5}).defect({9}),
            "a part has length 4 and unit 3: expected a length that is a multiple of the unit");
  EXPECT_EQ((Split{-1, {3}}).defect({3}), "Split::parts is set, but Split::dimension is -1");
  EXPECT_EQ(Split::rows({INT64_MAX, INT64_MAX}).defect({9}),
            "the parts do not add up to the extent of dimension 0, which is 9");
}

}  // namespace
}  // namespace aliquot
