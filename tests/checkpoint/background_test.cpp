// Tests background saves: the file must hold the state at the call of start(), and all ranks must learn of failures.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <gtest/gtest.h>
#include <mutex>

#include "checkpoint/background_saver.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/load.h"
#include "checkpoint/verify.h"
#include "kernels/system/non_temporal_copy.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/support.h"
#include "tests/support/limited_memory.h"

namespace aliquot {
namespace {

using test::Fault;
using test::FaultyFileSystem;
using test::Shard;
using test::SystemCall;

constexpr int kRanks = 3;

/// Blocks all writes until open() is called.
class GatedFileSystem final : public FileSystem {
 public:
  ssize_t pwrite(int file, const void* from, size_t count, off_t offset) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
    lock.unlock();
    return FileSystem::pwrite(file, from, count, offset);
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

SaveOptions options_with(FileSystem& file_system) {
  SaveOptions options;
  options.file_system = &file_system;
  return options;
}

class Background : public ::testing::Test {
 protected:
  void on_shards(const std::function<void(Communicator&, Shard&, BackgroundSaver&)>& body) {
    const auto failures = test::on_ranks(kRanks, [&](Communicator& communicator) {
      Shard shard(test::edge_case_tensors(), kRanks, communicator.rank(), test::Partition::kRandom, 4);
      shard.fill(1);
      BackgroundSaver saver(communicator, snapshot_bytes(shard.state()), nullptr);
      body(communicator, shard, saver);
    });
    EXPECT_EQ(failures, std::vector<std::string>(kRanks));
  }
  std::string file(const char* folder, int64_t step) const {
    return test::read_file(directory_.path() / folder / checkpoint_name(step) / "state.h5");
  }
  std::filesystem::path folder(const char* name) const { return directory_.path() / name; }

  test::TemporaryDirectory directory_;
};

TEST_F(Background, WritesTheStateAtTheCallWhileRanksContinue) {
  std::array<GatedFileSystem, kRanks> gates;
  on_shards([&](Communicator& communicator, Shard& shard, BackgroundSaver& saver) {
    save(shard.state(), communicator, folder("blocking"));
    GatedFileSystem& gate = gates[static_cast<size_t>(communicator.rank())];
    saver.start(shard.state(), folder("background"), options_with(gate));
    shard.poison();  // training modifies the state that is being saved
    // No byte is written yet, but the ranks can run collectives.
    for (int i = 0; i < 100; ++i) {
      const auto all = communicator.gather_objects(std::to_string(communicator.rank() * 1000 + i));
      for (int rank = 0; rank < kRanks; ++rank)
        EXPECT_EQ(all[static_cast<size_t>(rank)], std::to_string(rank * 1000 + i));
    }
    EXPECT_TRUE(saver.in_flight());
    EXPECT_FALSE(saver.finished());
    EXPECT_TRUE(list_checkpoints(folder("background")).empty());
    gate.open();
    const auto report = saver.collect();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->path, folder("background") / checkpoint_name(100));
    EXPECT_FALSE(saver.in_flight());
    EXPECT_FALSE(saver.collect().has_value());
  });
  EXPECT_TRUE(file("blocking", 100) == file("background", 100));
}

TEST_F(Background, ASecondSaveWaitsForTheFirst) {
  on_shards([&](Communicator&, Shard& shard, BackgroundSaver& saver) {
    for (int64_t step = 1; step <= 5; ++step) {
      shard.fill(static_cast<uint64_t>(step));
      shard.state().step = step;
      const auto before = saver.start(shard.state(), folder("all"), {});
      ASSERT_EQ(before.has_value(), step > 1);
      if (before) {
        EXPECT_EQ(before->path, folder("all") / checkpoint_name(step - 1));
      }
    }
    saver.collect();
    for (int64_t step = 1; step <= 5; ++step) {
      shard.fill(static_cast<uint64_t>(step));
      shard.state().step = step;
      saver.start(shard.state(), folder("again"), {});
      saver.collect();
    }
  });
  for (int64_t step = 1; step <= 5; ++step) EXPECT_TRUE(file("all", step) == file("again", step)) << step;
}

TEST_F(Background, AFailureOnOneRankIsThrownOnAllAndTheNextSaveWorks) {
  on_shards([&](Communicator& communicator, Shard& shard, BackgroundSaver& saver) {
    shard.state().step = 90;
    saver.start(shard.state(), folder("run"), {});
    saver.collect();
    for (const SystemCall call : {SystemCall::kWrite, SystemCall::kSync, SystemCall::kOpen}) {
      FaultyFileSystem broken(communicator.rank() == 2 ? Fault{call, 0, ENOSPC, true} : Fault{});
      shard.state().step = 100;
      saver.start(shard.state(), folder("run"), options_with(broken));
      std::string message;
      try {
        call == SystemCall::kWrite ? saver.collect() : saver.start(shard.state(), folder("run"), {});
      } catch (const FaultError& error) {
        message = error.what();
      }
      EXPECT_EQ(message.find("rank 2: "), 0u) << message;
      EXPECT_FALSE(saver.in_flight()) << "start() must not start a save if it throws the error of the previous one";
      communicator.gather_objects("checked");
      EXPECT_EQ(list_checkpoints(folder("run")).size(), 1u);
    }
    saver.start(shard.state(), folder("run"), {});
    EXPECT_NO_THROW(saver.collect());
  });
  EXPECT_EQ(list_checkpoints(folder("run")).size(), 2u);
  for (const FoundCheckpoint& found : list_checkpoints(folder("run"))) EXPECT_NO_THROW(verify_checkpoint(found.path));
}

/// All reads fail, like those from a lost device.
class UnreadableAccess final : public PieceAccess {
 public:
  void read(const StatePiece&, int64_t, int64_t, std::byte*) const override { throw FaultError("the device is lost"); }
  void write(const StatePiece&, int64_t, int64_t, const std::byte*) const override {}
};

TEST_F(Background, ACopyThatFailsOnOneRankFailsTheSaveOnAll) {
  const UnreadableAccess unreadable;
  on_shards([&](Communicator& communicator, Shard& shard, BackgroundSaver& saver) {
    State state = shard.state();
    if (communicator.rank() == 1) {
      for (StateTensor& tensor : state.tensors) tensor.access = &unreadable;
    }
    saver.start(state, folder("run"), {});
    try {
      saver.collect();
      ADD_FAILURE() << "the save succeeded although rank 1 could not copy its state";
    } catch (const FaultError& error) {
      EXPECT_STREQ(error.what(), "rank 1: the device is lost");
    }
    // If the state of one rank does not fit in its snapshot memory, the save fails with UsageError on all ranks.
    std::vector<std::byte> more(1 << 20);
    state = shard.state();
    if (communicator.rank() == 0) {
      state.tensors.push_back(
          {"parameters/new", {1 << 20}, DType::kUInt8, {{0, 1 << 20, more.data(), false}}, nullptr});
    }
    saver.start(state, folder("run"), {});
    EXPECT_THROW(saver.collect(), UsageError);
    saver.start(shard.state(), folder("run"), {});
    EXPECT_NO_THROW(saver.collect());
  });
  EXPECT_EQ(list_checkpoints(folder("run")).size(), 1u);
}

TEST_F(Background, RecordsItsMemoryOnceAndFreesIt) {
  const auto failures = test::on_ranks(1, [&](Communicator& communicator) {
    Shard shard(test::edge_case_tensors(), 1, 0, test::Partition::kBlocks, 4);
    shard.fill(1);
    const int64_t bytes = snapshot_bytes(shard.state());
    Ledger ledger;
    {
      BackgroundSaver saver(communicator, bytes, &ledger);
      EXPECT_EQ(ledger.current()[static_cast<size_t>(Category::kStaging)], bytes + kStagingBytes);
      for (int64_t step = 1; step <= 3; ++step) {
        shard.state().step = step;
        SaveOptions options;
        options.ledger = &ledger;
        saver.start(shard.state(), directory_.path(), options);
      }
    }
    EXPECT_EQ(ledger.held_peak_bytes(), bytes + kStagingBytes);
    EXPECT_EQ(ledger.in_use_peak_bytes(), bytes + kStagingBytes);
    EXPECT_EQ(ledger.held_bytes(), 0);
    EXPECT_TRUE(ledger.entries().empty());
  });
  EXPECT_EQ(failures[0], "");
  EXPECT_EQ(list_checkpoints(directory_.path()).size(), 3u) << "the destructor must wait for the save in flight";
}

TEST(StagingRingDeathTest, ReportsThatTheMemoryCannotBeAllocated) {
  if (!kCanLimitMemory) GTEST_SKIP() << "with this sanitizer the memory of the process cannot be limited";
  EXPECT_EXIT(exit_after_running_in_limited_memory(0, [] { StagingRing ring(nullptr); }), testing::ExitedWithCode(2),
              "cannot allocate 4 MiB of staging memory for a checkpoint: free some memory");
}

TEST(NonTemporalCopy, EqualsMemcpyAtEveryLengthAndAlignment) {
  std::vector<std::byte> from(200'000), to(from.size() + 8), expected(to.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (const size_t count : {0, 1, 63, 64, 16384, 32767, 32768, 32769, 49152, 65535, 100'003, 131'072, 190'001}) {
    for (const size_t from_at : {0, 1, 4, 63}) {
      for (const size_t to_at : {0, 1, 4, 60, 64, 4095}) {
        std::fill(to.begin(), to.end(), std::byte{0xee});
        std::fill(expected.begin(), expected.end(), std::byte{0xee});
        std::memcpy(expected.data() + to_at, from.data() + from_at, count);
        non_temporal_copy(to.data() + to_at, from.data() + from_at, count);
        ASSERT_TRUE(to == expected) << count << " from " << from_at << " to " << to_at;
      }
    }
  }
}

TEST_F(Background, TheSnapshotLeavesOutPiecesMarkedAsCopies) {
  float own[4] = {1, 2, 3, 4}, others[4] = {5, 6, 7, 8};
  State state;
  state.tensors = {
      {"parameters/w",
       {8},
       DType::kFloat32,
       {{0, 4, reinterpret_cast<std::byte*>(own), false}, {4, 4, reinterpret_cast<std::byte*>(others), true}},
       nullptr}};
  EXPECT_EQ(snapshot_bytes(state), 16);
  Snapshot snapshot(16, nullptr);
  snapshot.take(state);
  ASSERT_EQ(snapshot.state().tensors[0].pieces.size(), 1u);
  EXPECT_EQ(std::memcmp(snapshot.state().tensors[0].pieces[0].bytes, own, 16), 0);
}

TEST_F(Background, TheSnapshotHasTheRunsOfPieces) {
  const float values[8] = {1, 2, 0, 3, 4, 0, 5, 6}, expected[6] = {1, 2, 3, 4, 5, 6};
  State state;
  std::byte* bytes = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(values));
  state.tensors = {{"parameters/w",
                    {30},
                    DType::kFloat32,
                    {{.offset = 3, .count = 6, .bytes = bytes, .run = 2, .stride = 10, .memory_stride = 3}},
                    nullptr}};
  EXPECT_EQ(snapshot_bytes(state), 24);
  Snapshot snapshot(24, nullptr);
  snapshot.take(state);
  const StatePiece& piece = snapshot.state().tensors[0].pieces.at(0);
  EXPECT_EQ(std::memcmp(piece.bytes, expected, 24), 0);
  EXPECT_EQ(std::tuple(piece.offset, piece.count, piece.run, piece.stride, piece.memory_stride),
            std::tuple(3, 6, 2, 10, 0));
}

}  // namespace
}  // namespace aliquot
