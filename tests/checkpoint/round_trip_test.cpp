#include <bit>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <set>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "kernels/system/file_system.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::edge_case_tensors;
using test::on_ranks;
using test::Partition;
using test::Shard;
using test::TemporaryDirectory;

const std::vector<std::string> kNone;

void save_from(int rank_count, const std::filesystem::path& directory, Partition partition,
               const SaveOptions& options = {}, const std::vector<test::TestTensor>& tensors = edge_case_tensors(),
               int64_t step = 100) {
  const auto failures = on_ranks(rank_count, [&](Communicator& communicator) {
    Shard shard(tensors, rank_count, communicator.rank(), partition, 5);
    shard.fill(1);
    shard.state().step = step;
    save(shard.state(), communicator, directory, options);
  });
  for (const std::string& failure : failures) ASSERT_EQ(failure, "");
}

bool same(const std::map<std::string, Scalar>& a, const std::map<std::string, Scalar>& b) {
  const auto bits = [](const std::vector<double>& list) {
    std::vector<uint64_t> all;
    for (double each : list) all.push_back(std::bit_cast<uint64_t>(each));
    return all;
  };
  if (a.size() != b.size()) return false;
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.index() != value.index()) return false;
    if (const auto* list = std::get_if<std::vector<double>>(&value)) {
      if (bits(*list) != bits(std::get<std::vector<double>>(other->second))) return false;
    } else if (other->second != value) {
      return false;
    }
  }
  return true;
}

void load_on(int rank_count, const std::filesystem::path& path, Partition partition,
             const std::vector<test::TestTensor>& tensors = edge_case_tensors(), bool fresh = false) {
  const auto failures = on_ranks(rank_count, [&](Communicator& communicator) {
    Shard shard(tensors, rank_count, communicator.rank(), partition, 9);
    shard.poison();
    shard.state().step = -1;
    shard.state().scalars.clear();
    LoadOptions options;
    options.state_is_fresh = fresh;
    load(shard.state(), communicator, path, options);
    if (!shard.holds(1)) throw std::runtime_error("the loaded bytes differ from the saved ones");
    if (shard.state().step != 100 || !same(shard.state().scalars, test::test_scalars()))
      throw std::runtime_error("the loaded scalars differ from the saved ones");
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST(RoundTrip, TheSameStateGivesTheSameFileForAnyNumberOfRanks) {
  TemporaryDirectory directory;
  save_from(1, directory.path() / "1", Partition::kBlocks);
  const std::string expected = test::read_file(directory.path() / "1" / "step-00000100" / "state.h5");
  ASSERT_FALSE(expected.empty());
  for (int rank_count : {1, 2, 3, 4, 5}) {
    for (Partition partition : {Partition::kBlocks, Partition::kRandom, Partition::kSlices}) {
      for (bool direct : {true, false}) {
        const auto place = directory.path() / fmt::format("{}-{}-{}", rank_count, static_cast<int>(partition), direct);
        SaveOptions options;
        options.direct_io = direct;
        save_from(rank_count, place, partition, options);
        EXPECT_TRUE(test::read_file(place / "step-00000100" / "state.h5") == expected) << place;
      }
    }
  }
}

TEST(RoundTrip, ACheckpointOfAnyWorldLoadsOnAnyNumberOfRanks) {
  for (int writers : {1, 2, 3, 4, 5, 7, 8}) {
    TemporaryDirectory directory;
    save_from(writers, directory.path(), writers % 2 == 0 ? Partition::kBlocks : Partition::kRandom);
    for (int readers : {1, 2, 3, 4, 5, 7, 8}) {
      for (bool fresh : {false, true}) {
        load_on(readers, directory.path() / "step-00000100", readers % 3 == 0 ? Partition::kRandom : Partition::kBlocks,
                edge_case_tensors(), fresh);
      }
    }
  }
}

TEST(RoundTrip, ASaveLeavesNoOtherFilesAndNoOpenDescriptors) {
  TemporaryDirectory directory;
  const int before = test::open_descriptors();
  save_from(3, directory.path() / "deep" / "er", Partition::kBlocks);
  load_on(2, directory.path() / "deep" / "er" / "step-00000100", Partition::kBlocks);
  EXPECT_EQ(test::open_descriptors(), before);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path() / "deep" / "er"))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"step-00000100", "state.h5", "manifest.json"}));
}

TEST(RoundTrip, AStateWithScalarsAndNoTensorsIsSavedAndLoaded) {
  TemporaryDirectory directory;
  save_from(2, directory.path(), Partition::kBlocks, {}, {});
  load_on(3, directory.path() / "step-00000100", Partition::kBlocks, {});
}

TEST(RoundTrip, ASecondSaveOfAStepReplacesTheFirst) {
  TemporaryDirectory directory;
  save_from(2, directory.path(), Partition::kBlocks, {}, test::small_tensors());
  save_from(3, directory.path(), Partition::kBlocks);
  load_on(2, directory.path() / "step-00000100", Partition::kBlocks);
  EXPECT_EQ(list_checkpoints(directory.path()).size(), 1u);
  EXPECT_EQ(sweep_leftovers(directory.path()), kNone);
}

TEST(RoundTrip, TheManifestRecordsWrittenBy) {
  TemporaryDirectory directory;
  SaveOptions options;
  options.written_by["zero_stage"] = int64_t{3};
  save_from(4, directory.path(), Partition::kBlocks, options);
  const Manifest manifest = verify_checkpoint(directory.path() / "step-00000100");
  EXPECT_EQ(std::get<int64_t>(manifest.written_by.at("ranks")), 4);
  EXPECT_EQ(std::get<int64_t>(manifest.written_by.at("zero_stage")), 3);
  EXPECT_EQ(manifest.step, 100);
  EXPECT_EQ(manifest.tensors.size(), edge_case_tensors().size());
}

TEST(RoundTrip, KeepCountKeepsTheNewestCheckpoints) {
  TemporaryDirectory directory;
  for (int64_t step : {1, 2, 3, 4}) save_from(2, directory.path(), Partition::kBlocks, {}, test::small_tensors(), step);
  SaveOptions options;
  options.keep_count = 2;
  save_from(2, directory.path(), Partition::kBlocks, options, test::small_tensors(), 5);
  std::vector<int64_t> steps;
  for (const auto& found : list_checkpoints(directory.path())) steps.push_back(found.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{4, 5}));
  // A run that was resumed from an older step saves step 3: the checkpoint just written is kept, although it is not the
  // newest.
  save_from(2, directory.path(), Partition::kBlocks, options, test::small_tensors(), 3);
  steps.clear();
  for (const auto& found : list_checkpoints(directory.path())) steps.push_back(found.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 5}));
}

TEST(RoundTrip, CopiesAreLoadedAndNotSaved) {
  TemporaryDirectory directory;
  const auto failures = on_ranks(3, [&](Communicator& communicator) {
    Shard full(test::small_tensors(), 1, 0, Partition::kBlocks, 1);
    full.fill(1);
    for (StateTensor& tensor : full.state().tensors) {
      for (StatePiece& piece : tensor.pieces) piece.copy = communicator.rank() != 1;
    }
    save(full.state(), communicator, directory.path());
    for (bool fresh : {false, true}) {
      full.poison();
      LoadOptions options;
      options.state_is_fresh = fresh;
      load(full.state(), communicator, directory.path() / "step-00000100", options);
      if (!full.holds(1)) throw std::runtime_error("a piece marked as a copy was not loaded");
    }
  });
  EXPECT_EQ(failures, std::vector<std::string>(3));
}

/// Stores every byte of a piece inverted, as an example of memory that needs a PieceAccess.
class InvertedAccess final : public PieceAccess {
 public:
  explicit InvertedAccess(int64_t width) : width_(width) {}
  void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override {
    for (int64_t i = 0; i < count * width_; ++i) to[i] = ~piece.bytes[first * width_ + i];
  }
  void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override {
    for (int64_t i = 0; i < count * width_; ++i) piece.bytes[first * width_ + i] = ~from[i];
  }

 private:
  int64_t width_;
};

TEST(RoundTrip, SaveAndLoadUseThePieceAccess) {
  TemporaryDirectory plain, inverted;
  save_from(1, plain.path(), Partition::kBlocks);
  for (bool fresh : {false, true}) {
    const auto failures = on_ranks(3, [&](Communicator& communicator) {
      const InvertedAccess widths[] = {InvertedAccess(1), InvertedAccess(2), InvertedAccess(4), InvertedAccess(8)};
      Shard shard(edge_case_tensors(), 3, communicator.rank(), Partition::kRandom, 4);
      shard.fill(1);
      for (StateTensor& tensor : shard.state().tensors) {
        for (const StatePiece& piece : tensor.pieces) {
          for (int64_t i = 0; i < piece.count * element_bytes(tensor.dtype); ++i) piece.bytes[i] = ~piece.bytes[i];
        }
        tensor.access = &widths[std::countr_zero(static_cast<uint64_t>(element_bytes(tensor.dtype)))];
      }
      save(shard.state(), communicator, inverted.path());
      shard.poison();
      LoadOptions options;
      options.state_is_fresh = fresh;
      load(shard.state(), communicator, inverted.path() / "step-00000100", options);
      for (StateTensor& tensor : shard.state().tensors) {
        for (const StatePiece& piece : tensor.pieces) {
          for (int64_t i = 0; i < piece.count * element_bytes(tensor.dtype); ++i) piece.bytes[i] = ~piece.bytes[i];
        }
      }
      if (!shard.holds(1)) throw std::runtime_error("the loaded bytes differ from the saved ones");
    });
    EXPECT_EQ(failures, std::vector<std::string>(3));
  }
  EXPECT_TRUE(test::read_file(plain.path() / "step-00000100" / "state.h5") ==
              test::read_file(inverted.path() / "step-00000100" / "state.h5"));
}

TEST(RoundTrip, StagingMemoryIsRecordedInTheLedgerAndFreed) {
  TemporaryDirectory directory;
  Ledger ledger;
  SaveOptions options;
  options.ledger = &ledger;
  save_from(1, directory.path(), Partition::kBlocks, options);
  EXPECT_EQ(ledger.peak()[static_cast<size_t>(Category::kStaging)], kStagingBytes);
  EXPECT_EQ(ledger.held_bytes(), 0);
  EXPECT_EQ(ledger.in_use_bytes(), 0);
}

TEST(RoundTrip, LoadRejectsADirectoryOfCheckpointsAndLoadNewestRejectsACheckpoint) {
  const TemporaryDirectory directory;
  const std::filesystem::path newest = directory.path() / checkpoint_name(12);
  for (const auto& [step, count] : {std::pair{12, "1 checkpoint"}, {7, "2 checkpoints"}}) {
    save_from(2, directory.path(), Partition::kBlocks, {}, test::small_tensors(), step);
    const auto load_errors = on_ranks(2, [&](Communicator& communicator) {
      Shard shard(test::small_tensors(), 2, communicator.rank(), Partition::kBlocks, 5);
      load(shard.state(), communicator, directory.path(), {});
    });
    for (const std::string& error : load_errors) {
      EXPECT_EQ(error, fmt::format("rank 0: {} is not a checkpoint but a directory of {}: load one of them, such as "
                                   "{}, or use load_newest()",
                                   directory.path().string(), count, newest.string()));
    }
  }
  const auto load_newest_errors = on_ranks(2, [&](Communicator& communicator) {
    Shard shard(test::small_tensors(), 2, communicator.rank(), Partition::kBlocks, 5);
    load_newest(shard.state(), communicator, newest);
  });
  for (const std::string& error : load_newest_errors)
    EXPECT_EQ(error, fmt::format("rank 0: {} is a checkpoint: expected the directory that contains checkpoints",
                                 newest.string()));
}

}  // namespace
}  // namespace aliquot
