// Saves and loads pieces that consist of runs, as slices of split parameters do.
#include <bit>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <random>

#include "checkpoint/file/catalogue.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/verify.h"
#include "checkpoint/weights/export_weights.h"
#include "checkpoint/weights/load_weights.h"
#include "kernels/system/error.h"
#include "sharding/layout.h"
#include "sharding/split.h"
#include "sharding/state_pieces.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::Partition;
using test::Shard;
using test::TestTensor;

/// Matrices with runs that are smaller and larger than a page, with and without page alignment. Some are larger than a
/// window of the page layout, and some are too small for windows.
std::vector<TestTensor> matrices() {
  return {{"parameters/aligned", {300, 4096}, DType::kFloat32},
          {"parameters/odd", {1200, 1001}, DType::kFloat32},
          {"parameters/narrow", {9000, 8}, DType::kFloat32},
          {"parameters/vector", {511}, DType::kFloat32},
          {"parameters/cube", {40, 30, 20}, DType::kFloat32},
          {"parameters/scalar", {}, DType::kFloat32},
          {"parameters/small", {13, 7}, DType::kFloat32},
          {"optimizer/aligned/exp_avg", {300, 4096}, DType::kBFloat16},
          {"optimizer/small/codes", {130, 70}, DType::kUInt8},
          {"optimizer/wide", {3, 400'000}, DType::kFloat64}};
}

void save_slices(int rank_count, uint64_t partition_seed, const std::filesystem::path& directory, bool snapshot) {
  const auto failures = test::on_ranks(rank_count, [&](Communicator& ranks) {
    Shard shard(matrices(), rank_count, ranks.rank(), Partition::kSlices, partition_seed);
    shard.fill(1);
    if (!snapshot) {
      save(shard.state(), ranks, directory);
      return;
    }
    Snapshot copy(snapshot_bytes(shard.state()), nullptr);
    copy.take(shard.state());
    shard.poison();
    save(copy.state(), ranks, directory);
  });
  EXPECT_EQ(failures, std::vector<std::string>(static_cast<size_t>(rank_count)));
}

class Strided : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new test::TemporaryDirectory;
    test::save_test_state(directory_->path(), matrices());
  }
  static void TearDownTestSuite() { delete directory_; }

  static std::filesystem::path checkpoint() { return directory_->path() / "step-00000100"; }

  inline static test::TemporaryDirectory* directory_ = nullptr;
};

/// The checkpoint of one rank with contiguous pieces is the reference.
TEST_F(Strided, SavesWriteTheSameFileAsContiguousPieces) {
  const std::string expected = test::read_file(checkpoint() / "state.h5");
  for (const int rank_count : {1, 2, 5}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const test::TemporaryDirectory own;
      save_slices(rank_count, seed, own.path(), seed % 2 == 0);
      EXPECT_TRUE(test::read_file(own.path() / "step-00000100" / "state.h5") == expected)
          << rank_count << " ranks, seed " << seed;
      EXPECT_NO_THROW(verify_checkpoint(own.path() / "step-00000100"));
    }
  }
}

TEST_F(Strided, LoadsFillEveryElement) {
  for (const int rank_count : {1, 2, 5}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const auto failures = test::on_ranks(rank_count, [&](Communicator& ranks) {
        Shard shard(matrices(), rank_count, ranks.rank(), Partition::kSlices, seed);
        shard.poison();
        LoadOptions options;
        options.state_is_fresh = seed % 2 == 0;
        load(shard.state(), ranks, checkpoint(), options);
        if (!shard.holds(1)) throw std::runtime_error("the loaded bytes differ from the saved ones");
      });
      EXPECT_EQ(failures, std::vector<std::string>(static_cast<size_t>(rank_count))) << "seed " << seed;
    }
  }
}

/// Ranks that have the same slices, and ranks that have other slices, load together.
TEST_F(Strided, LoadsFillCopies) {
  const auto failures = test::on_ranks(4, [&](Communicator& ranks) {
    Shard shard(matrices(), 2, ranks.rank() % 2, Partition::kSlices, ranks.rank() == 3 ? 8 : 9);
    shard.poison();
    load(shard.state(), ranks, checkpoint(), {.state_is_fresh = true});
    if (!shard.holds(1)) throw std::runtime_error("the loaded bytes differ from the saved ones");
  });
  EXPECT_EQ(failures, std::vector<std::string>(4));
}

TEST_F(Strided, WeightsAreLoaded) {
  const test::TemporaryDirectory weights;
  const CheckpointReader reader = open_verified(checkpoint(), {});
  export_weights(reader, weights.path(), "w.safetensors", DType::kFloat32, {});
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const auto failures = test::on_ranks(3, [&](Communicator& ranks) {
      auto tensors = matrices();
      std::erase_if(tensors, [](const TestTensor& tensor) { return !tensor.path.starts_with("parameters"); });
      Shard shard(tensors, 3, ranks.rank(), Partition::kSlices, seed);
      shard.poison();
      load_weights(shard.state(), ranks, weights.path() / "w.safetensors");
      if (!shard.holds(1)) throw std::runtime_error("the loaded bytes differ from the saved ones");
    });
    EXPECT_EQ(failures, std::vector<std::string>(3)) << "seed " << seed;
  }
}

/// The calls of rank 1 fail in turn. Ranks exchange data between their writes, so they must not wait for a rank that
/// failed.
TEST_F(Strided, AFailureOfOneRankIsReportedByAllRanks) {
  for (const test::SystemCall call : {test::SystemCall::kWrite, test::SystemCall::kRead}) {
    int failed = 0;
    for (const int nth : {0, 1, 7, 60, 200, 1000, 5000}) {
      const test::TemporaryDirectory own;
      const auto failures = test::on_ranks(3, [&](Communicator& ranks) {
        test::FaultyFileSystem file_system({.call = call, .nth = ranks.rank() == 1 ? nth : -1});
        Shard shard(matrices(), 3, ranks.rank(), Partition::kSlices, 2);
        shard.fill(1);
        if (call == test::SystemCall::kWrite) {
          save(shard.state(), ranks, own.path(), {.file_system = &file_system});
        } else {
          load(shard.state(), ranks, checkpoint(), {.state_is_fresh = true, .file_system = &file_system});
        }
      });
      EXPECT_EQ(failures[0], failures[1]);
      EXPECT_EQ(failures[0], failures[2]);
      failed += failures[0].empty() ? 0 : 1;
      EXPECT_EQ(std::filesystem::is_empty(own.path()), call == test::SystemCall::kRead || !failures[0].empty());
    }
    EXPECT_GE(failed, 4);
  }
}

/// Returns the error of agree_on_catalogue() for one tensor on one rank, or an empty string.
std::string catalogue_error(Communicator& ranks, const StateTensor& tensor) {
  State state;
  state.tensors = {tensor};
  try {
    agree_on_catalogue(state, ranks, "directory");
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

/// Returns whether the pieces contain each element of the tensor once.
bool covers_once(const StateTensor& tensor) {
  std::vector<int> count(static_cast<size_t>(tensor.element_count()), 0);
  for (const StatePiece& piece : tensor.pieces) {
    for (int64_t i = 0; i < piece.count; ++i) ++count[static_cast<size_t>(element_at(piece, i))];
  }
  return std::ranges::all_of(count, [](int each) { return each == 1; });
}

/// Changes one number of one piece, so that it is still a piece of the tensor.
StateTensor mutated(const StateTensor& tensor, std::mt19937& random) {
  while (true) {
    StateTensor result = tensor;
    const std::size_t index = random() % result.pieces.size();
    StatePiece& piece = result.pieces[index];
    const int64_t change = random() % 2 == 0 ? 1 : -1;
    switch (random() % 5) {
      case 0: piece.offset += change; break;
      case 1: piece.stride += change; break;
      case 2: piece.count += change * run_elements(piece); break;
      case 3: piece.run += piece.run == 0 ? 0 : change; break;
      case 4: result.pieces.emplace_back(tensor.pieces[index]); break;
    }
    if (piece_defect(result.pieces[index], tensor.element_count()).empty()) return result;
  }
}

/// Compares the check of a save with a count of each element, for random slices and random changes to them.
TEST(Coverage, FindsEveryGapAndOverlap) {
  const auto failures = test::on_ranks(1, [](Communicator& ranks) {
    std::mt19937 random(11);
    int wrong = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const std::vector<int64_t> shape = {1 + static_cast<int64_t>(random() % 30),
                                          1 + static_cast<int64_t>(random() % 40)};
      const Shard shard({{"parameters/w", shape, DType::kUInt8}}, 1, 0, Partition::kSlices, seed);
      const StateTensor& tensor = const_cast<Shard&>(shard).state().tensors[0];
      EXPECT_EQ(catalogue_error(ranks, tensor), "");
      for (int i = 0; i < 40; ++i) {
        const StateTensor changed = mutated(tensor, random);
        const std::string error = catalogue_error(ranks, changed);
        EXPECT_EQ(error.empty(), covers_once(changed)) << error;
        wrong += error.empty() ? 0 : 1;
      }
    }
    EXPECT_GT(wrong, 1000);
  });
  EXPECT_EQ(failures, std::vector<std::string>(1));
}

TEST(Coverage, NamesTheElements) {
  const auto failures = test::on_ranks(1, [](Communicator& ranks) {
    StateTensor tensor{"parameters/w", {1000, 8}, DType::kUInt8, {}, nullptr};
    const auto error = [&](std::vector<StatePiece> pieces) {
      tensor.pieces = std::move(pieces);
      return catalogue_error(ranks, tensor);
    };
    const StatePiece left{.offset = 0, .count = 3000, .run = 3, .stride = 8};
    const StatePiece right{.offset = 3, .count = 5000, .run = 5, .stride = 8};
    EXPECT_EQ(error({left, right}), "");
    EXPECT_EQ(error({left, {.offset = 3, .count = 4000, .run = 4, .stride = 8}}),
              "no rank holds element 7 of tensor parameters/w, which has 8000 elements");
    EXPECT_EQ(
        error({{.offset = 0, .count = 4000, .run = 4, .stride = 8}, right}),
        "elements 3 to 3 of tensor parameters/w are held by ranks 0 and 0: set StatePiece::copy on all but one of "
        "them");
    EXPECT_EQ(error({left, {.offset = 3, .count = 4995, .run = 5, .stride = 8}}),
              "no rank holds element 7995 of tensor parameters/w, which has 8000 elements");
    EXPECT_EQ(error({left, {.offset = 3, .count = 4000, .run = 5, .stride = 9}}),
              "no rank holds element 11 of tensor parameters/w, which has 8000 elements");
    EXPECT_EQ(error({left, {.offset = 3, .count = 5000, .run = 5, .stride = 9}}),
              "a piece of tensor parameters/w is out of range: offset 3 and 1000 runs of 5 elements with stride 9, but "
              "the tensor has 8000 elements");
    // Strides of 2, 4 and 4 cover all elements.
    const StatePiece even{.offset = 0, .count = 4000, .run = 1, .stride = 2};
    const StatePiece first{.offset = 1, .count = 2000, .run = 1, .stride = 4};
    const StatePiece third{.offset = 3, .count = 2000, .run = 1, .stride = 4};
    EXPECT_EQ(error({even, first, third}), "");
    EXPECT_EQ(error({even, first}), "no rank holds element 3 of tensor parameters/w, which has 8000 elements");
  });
  EXPECT_EQ(failures, std::vector<std::string>(1));
}

/// The pieces of a matrix of 8192 x 8192 elements on 8 tensor ranks with 8 shards each. Each rank sends a few hundred
/// bytes about the matrix.
TEST(Coverage, NeedsFewBytesForAColumnSplitMatrix) {
  constexpr int kTensorRanks = 8, kShards = 8;
  StateTensor tensor{"parameters/w", {8192, 8192}, DType::kFloat32, {}, nullptr};
  for (int rank = 0; rank < kTensorRanks; ++rank) {
    const Slice slice(tensor.shape, Split::columns(), rank, kTensorRanks);
    const FlatLayout layout({{"before", {1000}, DType::kFloat32}, {"w", slice.shape(), DType::kFloat32}}, kShards);
    for (int shard = 0; shard < kShards; ++shard) {
      const size_t before = tensor.pieces.size();
      for (const Piece& piece : layout.pieces(shard)) {
        if (piece.tensor == 0) continue;
        for (const SliceRuns& runs : slice.runs(piece.tensor_offset, piece.tensor_offset + piece.count))
          tensor.pieces.push_back({.offset = runs.full, .count = runs.count, .run = runs.run, .stride = runs.stride});
      }
      EXPECT_LE(tensor.pieces.size() - before, 3u);
    }
  }
  const auto failures = test::on_ranks(1, [&](Communicator& ranks) {
    State state;
    state.tensors = {tensor};
    const Catalogue catalogue = agree_on_catalogue(state, ranks, "directory");
    EXPECT_EQ(catalogue.held_pieces.size(), tensor.pieces.size());
    EXPECT_LE(catalogue.held_pieces.size() * sizeof(HeldPiece), 3u * 64 * 48);
  });
  EXPECT_EQ(failures, std::vector<std::string>(1));
}

}  // namespace
}  // namespace aliquot
