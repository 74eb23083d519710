#include "sharding/layout.h"

#include <gtest/gtest.h>
#include <random>

#include "kernels/system/error.h"
#include "sharding/state.h"

namespace aliquot {
namespace {

FlatLayout layout(std::vector<std::vector<int64_t>> shapes, int rank_count, int64_t red_zone_blocks = 0) {
  std::vector<TensorSpec> tensors;
  for (auto& shape : shapes)
    tensors.push_back({.name = "t" + std::to_string(tensors.size()), .shape = std::move(shape)});
  return FlatLayout(std::move(tensors), rank_count, 1, red_zone_blocks);
}

/// Expects that the tensors and gaps cover the flat buffer exactly, and that each gap has space for its red zone.
void expect_gaps(const FlatLayout& layout, int64_t red_zone_blocks) {
  const std::vector<Gap> gaps = layout.gaps();
  auto gap = gaps.begin();
  int64_t end = 0;
  const auto skip_gap = [&](int32_t after, int64_t next) {
    ASSERT_GE(next - end, red_zone_blocks * kBlockElements);
    if (next == end) return;
    ASSERT_NE(gap, gaps.end());
    ASSERT_EQ(*gap++, (Gap{after, end, next}));
  };
  for (int32_t t = 0; t < static_cast<int32_t>(layout.tensors().size()); ++t) {
    skip_gap(t - 1, layout.tensor_offset(t));
    end = layout.tensor_offset(t) + layout.tensors()[t].element_count();
  }
  skip_gap(static_cast<int32_t>(layout.tensors().size()) - 1, layout.flat_count());
  ASSERT_EQ(gap, gaps.end());
}

/// Expects that every element of every tensor is in exactly one piece, in order and inside its shard, and that place()
/// agrees with pieces().
void expect_pieces_cover_tensors(const FlatLayout& layout) {
  std::vector<int64_t> next(layout.tensors().size(), 0);
  for (int r = 0; r < layout.rank_count(); ++r) {
    int64_t shard_end = 0;
    for (const Piece& piece : layout.pieces(r)) {
      ASSERT_GT(piece.count, 0);
      ASSERT_EQ(piece.tensor_offset, next[piece.tensor]) << "a gap or an overlap in tensor " << piece.tensor;
      ASSERT_GE(piece.shard_offset, shard_end);
      ASSERT_EQ(piece.shard_offset % kBlockElements, 0);
      ASSERT_EQ(piece.tensor_offset % kBlockElements, 0);
      next[piece.tensor] += piece.count;
      shard_end = piece.shard_offset + piece.count;
      ASSERT_LE(shard_end, layout.shard_count());
      ASSERT_EQ(layout.place(piece.tensor, piece.tensor_offset), (Place{r, piece.shard_offset}));
      ASSERT_EQ(layout.place(piece.tensor, piece.tensor_offset + piece.count - 1), (Place{r, shard_end - 1}));
      ASSERT_EQ(layout.tensor_offset(piece.tensor) + piece.tensor_offset,
                r * layout.shard_count() + piece.shard_offset);
    }
  }
  for (std::size_t t = 0; t < next.size(); ++t) ASSERT_EQ(next[t], layout.tensors()[t].element_count());
}

TEST(FlatLayout, TwoTensorsOnTwoRanksMatchALayoutComputedByHand) {
  // The 3 x 5 tensor needs one block, and the tensor of 300 elements needs two. Each rank has two blocks, so the last
  // block of rank 1 is padding.
  const auto flat = layout({{3, 5}, {300}}, 2);
  EXPECT_EQ(flat.shard_count(), 512);
  EXPECT_EQ(flat.flat_count(), 1024);
  EXPECT_EQ(flat.element_count(), 315);
  EXPECT_EQ(flat.pieces(0), (std::vector<Piece>{{0, 0, 0, 15}, {1, 0, 256, 256}}));
  EXPECT_EQ(flat.pieces(1), (std::vector<Piece>{{1, 256, 0, 44}}));
}

TEST(FlatLayout, ShardsAreEmptyIfThereAreFewerBlocksThanRanks) {
  const auto flat = layout({{7}, {1}}, 8);
  EXPECT_EQ(flat.shard_count(), 256);
  EXPECT_EQ(flat.pieces(0).size(), 1u);
  EXPECT_EQ(flat.pieces(1).size(), 1u);
  for (int r = 2; r < 8; ++r) EXPECT_TRUE(flat.pieces(r).empty());
  expect_pieces_cover_tensors(flat);
}

TEST(FlatLayout, AllowsNoTensorsAndEmptyTensors) {
  const auto none = layout({}, 3);
  EXPECT_EQ(none.shard_count(), 0);
  EXPECT_TRUE(none.pieces(2).empty());
  const auto empty = layout({{0, 5}, {4}}, 3);
  EXPECT_EQ(empty.element_count(), 4);
  expect_pieces_cover_tensors(empty);
}

TEST(FlatLayout, AScalarHasOneElement) { EXPECT_EQ(layout({{}}, 1).element_count(), 1); }

TEST(FlatLayout, RandomShapesOnRandomWorldsAreCoveredExactly) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<std::vector<int64_t>> shapes(random() % 12);
    for (auto& shape : shapes) {
      shape.resize(random() % 4);
      for (auto& extent : shape) extent = static_cast<int64_t>(random() % 40);
      if (random() % 4 == 0)
        shape = {static_cast<int64_t>(random() % 5) * kBlockElements + static_cast<int64_t>(random() % 3) - 1};
      if (!shape.empty() && shape[0] < 0) shape[0] = 0;
    }
    const int rank_count = 1 + static_cast<int>(random() % 64);
    for (const int64_t red_zone_blocks : {0, 1, 3}) {
      const auto flat = layout(shapes, rank_count, red_zone_blocks);
      expect_pieces_cover_tensors(flat);
      expect_gaps(flat, red_zone_blocks);
      if (HasFatalFailure()) FAIL() << "trial " << trial << ", " << rank_count << " ranks, " << red_zone_blocks;
    }
  }
}

TEST(FlatLayout, TensorOffsetsDoNotDependOnTheWorldSize) {
  for (int rank_count = 1; rank_count < 20; ++rank_count) {
    const auto flat = layout({{1000}, {3}, {2, 500}}, rank_count);
    EXPECT_EQ(flat.tensor_offset(1), 1024);
    EXPECT_EQ(flat.tensor_offset(2), 1280);
  }
}

TEST(FlatLayout, RejectsInvalidTensorsAndRankCounts) {
  EXPECT_THROW(FlatLayout({{"a", {1}}, {"a", {1}}}, 1), UsageError);
  EXPECT_THROW(FlatLayout({{"a", {1}}, {"b", {1}, DType::kBFloat16}}, 1), UsageError);
  EXPECT_THROW(FlatLayout({{"a", {1}}, {"b", {1}, DType::kFloat32, false}}, 1), UsageError);
  EXPECT_THROW(FlatLayout({{"a", {1}}}, 0), UsageError);
  EXPECT_THROW(FlatLayout({{"a", {-1}}}, 1), UsageError);
  EXPECT_THROW(FlatLayout({{"a", {int64_t{1} << 40, int64_t{1} << 40}}}, 1), UsageError);
  EXPECT_THROW(FlatLayout({{"a", {0, -1}}}, 1), UsageError);
  EXPECT_THROW(FlatLayout({{"a", {int64_t{1} << 61}}, {"b", {int64_t{1} << 61}}, {"c", {int64_t{1} << 61}}}, 1),
               UsageError);
}

TEST(StateTensors, RejectNegativeAndOverflowingShapes) {
  for (const auto& shape : {std::vector<int64_t>{-1}, {0, -1}, {int64_t{1} << 40, int64_t{1} << 40}})
    EXPECT_THROW((StateTensor{"parameters/w", shape, DType::kFloat32, {}}).element_count(), UsageError);
  EXPECT_EQ((StateTensor{"parameters/w", {3, 5}, DType::kFloat32, {}}).element_count(), 15);
}

TEST(FlatLayout, ZeroExtentGivesZeroElementsWithoutOverflow) {
  constexpr int64_t kLarge = int64_t{1} << 40;
  for (const auto& shape : {std::vector{kLarge, kLarge, int64_t{0}}, std::vector{int64_t{0}, kLarge, kLarge}})
    EXPECT_EQ(layout({shape}, 3).element_count(), 0);
}

}  // namespace
}  // namespace aliquot
