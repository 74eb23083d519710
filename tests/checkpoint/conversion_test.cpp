// Loads into tensors of another dtype, in every mode of load(). A load converts if the conversion is exact or
// allow_rounding is set.
#include <cstring>
#include <gtest/gtest.h>

#include "checkpoint/file/convert.h"
#include "checkpoint/load.h"
#include "sharding/state_pieces.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::Shard;
using test::TestTensor;

std::vector<TestTensor> tensors(DType state) {
  return {
      {"optimizer/w/exp_avg", {1051, 1001}, state},  // more than a tile, and not a multiple of a block, page or chunk
      {"optimizer/b/exp_avg", {13}, state},
      {"parameters/b", {13}, DType::kFloat32},
      {"parameters/w", {1051, 1001}, DType::kFloat32}};
}

/// Returns the bytes of the full saved tensor, converted to `to` in one call.
std::vector<std::byte> expected(const TestTensor& saved, DType to) {
  const auto from = test::full_tensor_bytes(saved, 1);
  const int64_t count = static_cast<int64_t>(from.size()) / element_bytes(saved.dtype);
  std::vector<std::byte> result(static_cast<size_t>(count * element_bytes(to)));
  convert(to, result.data(), saved.dtype, from.data(), count);
  return result;
}

/// Models memory that only the PieceAccess can reach, like that of a device. StatePiece::bytes points
/// one byte too far, and only write() corrects this.
class IndirectAccess final : public PieceAccess {
 public:
  void read(const StatePiece&, int64_t, int64_t, std::byte*) const override {
    throw std::logic_error("a load must not read the state");
  }
  void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override {
    EXPECT_LE(count * width, kStagingChunkBytes);
    std::memcpy(piece.bytes - 1 + first * width, from, static_cast<size_t>(count * width));
  }
  int64_t width = 0;
};

class Conversion : public ::testing::TestWithParam<std::tuple<int, bool, bool>> {
 protected:
  void load_as(DType saved, DType wanted, const LoadOptions& options, size_t converted) {
    for (const test::Partition partition : {test::Partition::kRandom, test::Partition::kSlices})
      load_as(saved, wanted, options, converted, partition);
  }

  void load_as(DType saved, DType wanted, const LoadOptions& options, size_t converted, test::Partition partition) {
    const auto [rank_count, fresh, through_access] = GetParam();
    test::TemporaryDirectory directory;
    test::save_test_state(directory.path(), tensors(saved), 1, 100, 2);
    const auto failures =
        test::on_ranks(rank_count, [&, fresh = fresh, indirect = through_access](Communicator& ranks) {
          Shard shard(tensors(wanted), ranks.rank_count(), ranks.rank(), partition, 3);
          shard.poison();
          State state = shard.state();
          std::vector<IndirectAccess> accesses(state.tensors.size());
          for (size_t i = 0; indirect && i < state.tensors.size(); ++i) {
            accesses[i].width = element_bytes(state.tensors[i].dtype);
            state.tensors[i].access = &accesses[i];
            for (StatePiece& piece : state.tensors[i].pieces) ++piece.bytes;
          }
          LoadOptions how = options;
          how.state_is_fresh = fresh;
          const LoadReport report = load(state, ranks, directory.path() / "step-00000100", how);
          EXPECT_EQ(report.converted.size(), converted);
          expect_converted(shard.state(), saved);
        });
    EXPECT_EQ(failures, std::vector<std::string>(static_cast<size_t>(rank_count)));
  }

  static void expect_converted(const State& state, DType saved) {
    for (const StateTensor& tensor : state.tensors) {
      const DType from = tensor.path.starts_with("optimizer") ? saved : DType::kFloat32;
      const auto full = expected({tensor.path, tensor.shape, from}, tensor.dtype);
      const int64_t width = element_bytes(tensor.dtype);
      for (const StatePiece& piece : tensor.pieces) {
        const int64_t spacing = piece.memory_stride == 0 ? run_elements(piece) : piece.memory_stride;
        for (int64_t i = 0; i < run_count(piece); ++i) {
          const int64_t first = piece.offset + i * piece.stride;
          ASSERT_EQ(std::memcmp(piece.bytes + i * spacing * width, full.data() + first * width,
                                static_cast<size_t>(run_elements(piece) * width)),
                    0)
              << tensor.path << " from " << first;
        }
      }
    }
  }
};

TEST_P(Conversion, ToAWiderDtypeIsExactAndReported) {
  load_as(DType::kBFloat16, DType::kFloat32, {}, 2);
  load_as(DType::kFloat16, DType::kFloat32, {}, 2);
  load_as(DType::kFloat32, DType::kFloat64, {}, 2);
}

TEST_P(Conversion, ToANarrowerDtypeRoundsWithAllowRounding) {
  LoadOptions options;
  options.allow_rounding = true;
  load_as(DType::kFloat32, DType::kBFloat16, options, 2);
  load_as(DType::kFloat32, DType::kFloat32, options, 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, Conversion,
                         ::testing::Combine(::testing::Values(1, 3), ::testing::Bool(), ::testing::Bool()));

TEST(LoadConversion, RejectsRoundingWithoutPermissionAndUnsupportedPairs) {
  const std::vector<std::tuple<DType, DType, bool>> cases{{DType::kFloat32, DType::kBFloat16, false},
                                                          {DType::kBFloat16, DType::kFloat16, false},
                                                          {DType::kInt16, DType::kFloat32, true},
                                                          {DType::kFloat32, DType::kUInt8, true},
                                                          {DType::kFloat64, DType::kBFloat16, true}};
  for (const auto& [saved, wanted, allowed] : cases) {
    test::TemporaryDirectory directory;
    test::save_test_state(directory.path(), tensors(saved));
    const auto failures = test::on_ranks(2, [&, to = wanted, rounding = allowed](Communicator& ranks) {
      Shard shard(tensors(to), 2, ranks.rank(), test::Partition::kBlocks, 3);
      shard.poison();
      LoadOptions options;
      options.allow_rounding = rounding;
      try {
        load(shard.state(), ranks, directory.path() / "step-00000100", options);
      } catch (const UsageError&) {
        EXPECT_TRUE(shard.is_poisoned());
        throw;
      }
    });
    EXPECT_EQ(failures[0], failures[1]);
    for (const char* tensor : {"optimizer/w/exp_avg", "optimizer/b/exp_avg"}) {
      EXPECT_NE(failures[0].find(std::string(tensor) + " (checkpoint: "), std::string::npos) << failures[0];
    }
  }
}

}  // namespace
}  // namespace aliquot
