// Makes each system call of a save or a load fail in turn, on each rank. All ranks must report the same error, and the
// old checkpoint must stay intact.
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <iostream>
#include <map>
#include <set>
#include <sys/resource.h>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "kernels/system/file.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::Fault;
using test::FaultyFileSystem;
using test::Shard;
using test::SystemCall;
using test::TemporaryDirectory;

constexpr int kRanks = 2;

struct Scenario {
  const char* name;
  int64_t step;    // the step to save; a checkpoint of step 90 exists already
  int keep_count;  // number of checkpoints to keep; 0: all
};

constexpr Scenario kAddingStep{"save of a new step", 100, 0};
constexpr Scenario kReplacing{"save that replaces its step", 90, 0};
constexpr Scenario kPruning{"save that prunes the old step", 100, 1};

struct Outcome {
  std::vector<std::string> failures;  // the error message of each rank, or ""
  std::vector<std::string> warnings;  // the warnings that save() returns on rank 0
  std::array<std::array<int, test::kSystemCallCount>, kRanks> counts{};
};

Outcome save_with(const Scenario& scenario, const std::filesystem::path& directory, int faulty_rank,
                  const Fault& fault) {
  Outcome outcome;
  outcome.failures = test::on_ranks(kRanks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    FaultyFileSystem file_system(rank == faulty_rank ? fault : Fault{});
    Shard shard(test::small_tensors(), kRanks, rank, test::Partition::kRandom, 3);
    shard.fill(2);
    shard.state().step = scenario.step;
    SaveOptions options;
    options.file_system = &file_system;
    options.keep_count = scenario.keep_count;
    const auto store_counts = [&] {
      for (int call = 0; call < test::kSystemCallCount; ++call) {
        outcome.counts[static_cast<size_t>(rank)][static_cast<size_t>(call)] =
            file_system.count(static_cast<SystemCall>(call));
      }
    };
    try {
      const SaveReport report = save(shard.state(), communicator, directory, options);
      if (rank == 0) outcome.warnings = report.warnings;
      store_counts();
    } catch (...) {
      store_counts();
      throw;
    }
  });
  return outcome;
}

/// Returns the seed (1 or 2) from which the data of the step's checkpoint was generated. Returns 0 if there is no
/// checkpoint, and 99 if it holds other data.
uint64_t seed_of(const std::filesystem::path& directory, int64_t step) {
  const auto path = directory / checkpoint_name(step);
  if (!std::filesystem::exists(path)) return 0;
  verify_checkpoint(path);
  uint64_t found = 99;
  test::on_ranks(1, [&](Communicator& communicator) {
    Shard shard(test::small_tensors(), 1, 0, test::Partition::kBlocks, 1);
    load(shard.state(), communicator, path);
    for (uint64_t seed : {1u, 2u}) {
      if (shard.holds(seed)) found = seed;
    }
  });
  return found;
}

std::set<std::string> names_in(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

struct Tally {
  int cases = 0, failed = 0, succeeded = 0, pruned = 0;
};

/// Runs a save in which one call fails, and checks the guarantees of save().
void run_case(const Scenario& scenario, int rank, const Fault& fault, Tally& tally) {
  SCOPED_TRACE(testing::Message() << scenario.name << ": rank " << rank << ", " << test::name(fault.call) << " "
                                  << fault.nth << (fault.from_then_on ? " and on, " : ", ")
                                  << (fault.short_transfer ? "short" : std::strerror(fault.error)));
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), test::small_tensors(), 1, 90);
  const int descriptors = test::open_descriptors();
  const Outcome outcome = save_with(scenario, directory.path(), rank, fault);
  EXPECT_EQ(test::open_descriptors(), descriptors);
  EXPECT_EQ(outcome.failures[0], outcome.failures[1]) << "the ranks report different errors";
  ++tally.cases;
  const bool succeeded = outcome.failures[0].empty();
  ++(succeeded ? tally.succeeded : tally.failed);
  const bool harmless = fault.error == EINTR || fault.short_transfer;
  if (harmless) {
    EXPECT_EQ(outcome.failures[0], "");
  }
  const bool matters = fault.call == SystemCall::kWrite || fault.call == SystemCall::kSync ||
                       fault.call == SystemCall::kRename || fault.call == SystemCall::kMakeDirectory ||
                       fault.call == SystemCall::kAllocate;
  if (matters && !harmless) {
    EXPECT_TRUE(!succeeded || (scenario.keep_count > 0 && !outcome.warnings.empty())) << "a failure was not reported";
  }
  const uint64_t expected = succeeded ? 2 : scenario.step == 90 ? 1 : 0;
  EXPECT_EQ(seed_of(directory.path(), scenario.step), expected);
  // Files that could not be removed after the commit are hidden. sweep_leftovers() removes them.
  if (fault.call == SystemCall::kUnlink || succeeded) sweep_leftovers(directory.path());
  std::set<std::string> names = names_in(directory.path());
  const bool pruned = succeeded && scenario.keep_count == 1 && !names.contains("step-00000090");
  if (scenario.step != 90 && !pruned) {
    EXPECT_EQ(seed_of(directory.path(), 90), 1u);
  }
  tally.pruned += pruned ? 1 : 0;
  names = {};
  if (!pruned) names.insert("step-00000090");
  if (expected != 0) names.insert(checkpoint_name(scenario.step));
  EXPECT_EQ(names_in(directory.path()), names);
  if (!succeeded && rank != 0) {
    EXPECT_EQ(outcome.failures[0].find("rank 1: "), 0u) << outcome.failures[0];
  }
}

/// Runs a case for each system call that the save makes.
void run_all(const Scenario& scenario) {
  Outcome plain;
  {
    TemporaryDirectory directory;
    test::save_test_state(directory.path(), test::small_tensors(), 1, 90);
    plain = save_with(scenario, directory.path(), -1, {});
    ASSERT_EQ(plain.failures, std::vector<std::string>(kRanks));
  }
  Tally tally;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int kind = 0; kind < test::kSystemCallCount; ++kind) {
      const auto call = static_cast<SystemCall>(kind);
      const int calls = plain.counts[static_cast<size_t>(rank)][static_cast<size_t>(kind)];
      for (int nth = 0; nth < calls; ++nth) {
        for (int error : {ENOSPC, EIO, EINTR}) run_case(scenario, rank, {call, nth, error}, tally);
        if (call == SystemCall::kWrite) run_case(scenario, rank, {call, nth, 0, false, true}, tally);
        if (call != SystemCall::kUnlink && call != SystemCall::kOpen)
          run_case(scenario, rank, {call, nth, EIO, true}, tally);
      }
    }
  }
  std::cout << scenario.name << ": " << tally.cases << " cases, " << tally.failed
            << " saves failed with the same error on all ranks, " << tally.succeeded << " succeeded, " << tally.pruned
            << " of them pruned\n";
  EXPECT_EQ(tally.pruned > 0, scenario.keep_count > 0);
}

TEST(Failure, ASaveOfANewStepHandlesAFailureOfEachCall) { run_all(kAddingStep); }
TEST(Failure, AReplacingSaveHandlesAFailureOfEachCall) { run_all(kReplacing); }
TEST(Failure, APruningSaveHandlesAFailureOfEachCall) { run_all(kPruning); }

TEST(Failure, AFailedReadInALoadThrowsTheSameErrorOnAllRanks) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), test::small_tensors());
  const auto path = directory.path() / "step-00000100";
  for (SystemCall call : {SystemCall::kOpen, SystemCall::kRead, SystemCall::kStatus}) {
    for (int rank : {0, 1}) {
      for (const Fault& fault :
           {Fault{call, 0, EIO}, Fault{call, 1, EIO}, Fault{call, 0, EINTR}, Fault{call, 0, 0, false, true}}) {
        if (fault.short_transfer && call != SystemCall::kRead) continue;
        const auto failures = test::on_ranks(kRanks, [&](Communicator& communicator) {
          FaultyFileSystem file_system(communicator.rank() == rank ? fault : Fault{});
          LoadOptions options;
          options.file_system = &file_system;
          Shard shard(test::small_tensors(), kRanks, communicator.rank(), test::Partition::kBlocks, 1);
          shard.poison();
          try {
            load(shard.state(), communicator, path, options);
            EXPECT_TRUE(shard.holds(1));
          } catch (const CheckpointError&) {
            // A read that fails after verification may leave a part of the state modified. A read that fails before
            // or during verification must not.
            if (file_system.count(SystemCall::kRead) <= 1) {
              EXPECT_TRUE(shard.is_poisoned());
            }
            throw;
          }
        });
        EXPECT_EQ(failures[0], failures[1]);
        if (fault.error == EINTR || fault.short_transfer) {
          EXPECT_EQ(failures[0], "");
        }
      }
    }
  }
}

TEST(Failure, ANegativeKeepCountAndAPathThatIsNotADirectoryAreRejected) {
  TemporaryDirectory directory;
  const auto file = directory.path() / "file";
  std::ofstream(file) << "not a directory";
  const auto failures = test::on_ranks(2, [&](Communicator& communicator) {
    Shard shard(test::small_tensors(), 2, communicator.rank(), test::Partition::kBlocks, 1);
    EXPECT_THROW(save(shard.state(), communicator, directory.path(), {.keep_count = -1}), UsageError);
    EXPECT_THROW(load_newest(shard.state(), communicator, file), UsageError);
  });
  EXPECT_EQ(failures, std::vector<std::string>(2));
}

TEST(Failure, ASaveNamesTheFirstDifferenceBetweenRanks) {
  TemporaryDirectory directory;
  const auto save_altered = [&](const std::function<void(State&, int)>& alter) {
    const auto failures = test::on_ranks(3, [&](Communicator& communicator) {
      Shard shard(test::small_tensors(), 3, communicator.rank(), test::Partition::kBlocks, 1);
      shard.fill(1);
      alter(shard.state(), communicator.rank());
      try {
        save(shard.state(), communicator, directory.path());
      } catch (const UsageError&) {
        throw;
      } catch (...) {
        throw std::runtime_error("another kind of error");
      }
    });
    EXPECT_EQ(failures[0], failures[1]);
    EXPECT_EQ(failures[0], failures[2]);
    EXPECT_TRUE(names_in(directory.path()).empty());
    return failures[0];
  };
  const auto expect_error = [&](const std::string& words, const std::function<void(State&, int)>& alter) {
    const std::string message = save_altered(alter);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect_error("rank 2 has \"step 101\" where rank 0 has \"step 100\"",
               [](State& state, int rank) { state.step += rank / 2; });
  expect_error("rank 1 has \"tensor parameters/w float32 7x13\"", [](State& state, int rank) {
    if (rank == 1) state.tensors[0].shape = {7, 13};
  });
  expect_error("\"scalar seed", [](State& state, int rank) { state.scalars["seed"] = int64_t{rank}; });
  expect_error("rank 2 has \"nothing\"", [](State& state, int rank) {
    if (rank == 2) state.tensors.erase(state.tensors.begin());
  });
  expect_error("no rank holds element 0", [](State& state, int) { state.tensors[0].pieces.clear(); });
  expect_error("held by ranks 0 and 1: set StatePiece::copy", [](State& state, int rank) {
    static std::byte spare[4];
    if (rank == 1) state.tensors[0].pieces = {{3, 1, spare}};
  });
  expect_error("is out of range: offset 91 and count 1", [](State& state, int rank) {
    static std::byte spare[4];
    if (rank == 1) state.tensors[0].pieces = {{91, 1, spare}};
  });
  expect_error("is used twice", [](State& state, int) { state.tensors[1].path = state.tensors[0].path; });
  expect_error("its path has an empty", [](State& state, int) { state.tensors[0].path = "parameters//w"; });
  expect_error("is reserved", [](State& state, int) { state.scalars["step"] = int64_t{1}; });
  expect_error("text cannot be saved: its value contains a NUL",
               [](State& state, int) { state.scalars["text"] = std::string(1, '\0'); });
  expect_error("step -1 cannot be saved", [](State& state, int) { state.step = -1; });
  expect_error("and the limit is", [](State& state, int) { state.scalars["text"] = std::string(40'000, 'x'); });
}

TEST(Failure, RanksThatLoadDifferentCheckpointsAreNamed) {
  TemporaryDirectory directory;
  const auto failures = test::on_ranks(2, [&](Communicator& communicator) {
    Shard shard(test::small_tensors(), 2, communicator.rank(), test::Partition::kBlocks, 1);
    load(shard.state(), communicator, directory.path() / (communicator.rank() == 0 ? "a" : "b"));
  });
  EXPECT_EQ(failures[0], failures[1]);
  EXPECT_NE(failures[1].find("ranks would load different checkpoints: rank 1 requests"), std::string::npos)
      << failures[1];
}

TEST(Failure, AReadPastTheEndOfAFileNamesTheFile) {
  TemporaryDirectory directory;
  test::write_file(directory.path() / "short", "12345");
  const File file = Directory::open(FileSystem::system(), directory.path()).open_for_reading("short");
  std::array<std::byte, 8> bytes{};
  try {
    file.read(bytes, 0);
    FAIL() << "read() returned 8 bytes of a file of 5 bytes";
  } catch (const FaultError& error) {
    EXPECT_NE(std::string(error.what()).find("short: unexpected end of file at byte 5"), std::string::npos)
        << error.what();
  }
}

TEST(Failure, AFullDiskIsReportedBeforeAnythingIsWritten) {
  class FullFileSystem final : public FileSystem {
   public:
    int space(int file, struct statvfs* to) override {
      const int result = FileSystem::space(file, to);
      to->f_bavail = 0;
      return result;
    }
  } full;
  TemporaryDirectory directory;
  const auto failures = test::on_ranks(2, [&](Communicator& communicator) {
    Shard shard(test::small_tensors(), 2, communicator.rank(), test::Partition::kBlocks, 1);
    shard.fill(1);
    SaveOptions options;
    options.file_system = &full;
    save(shard.state(), communicator, directory.path(), options);
  });
  EXPECT_EQ(failures[0], failures[1]);
  EXPECT_NE(failures[0].find("but only 0 B are free: free disk space"), std::string::npos) << failures[0];
  EXPECT_TRUE(names_in(directory.path()).empty());
}

TEST(Failure, ALoadListsAllTensorsThatDoNotFit) {
  TemporaryDirectory directory;
  test::save_test_state(directory.path(), test::small_tensors());
  const auto path = directory.path() / "step-00000100";
  auto wanted = test::small_tensors();
  wanted[0].shape = {7, 13};
  wanted[1].path = "parameters/other";
  const auto attempt = [&](const LoadOptions& options) {
    return test::on_ranks(2, [&](Communicator& communicator) {
      Shard shard(wanted, 2, communicator.rank(), test::Partition::kBlocks, 1);
      shard.poison();
      try {
        const LoadReport report = load(shard.state(), communicator, path, options);
        EXPECT_EQ(report.missing, std::vector<std::string>{"parameters/other"});
        EXPECT_EQ(report.extra, std::vector<std::string>{"parameters/b"});
        for (const StatePiece& piece : shard.state().tensors[1].pieces) EXPECT_EQ(piece.bytes[0], std::byte{0});
      } catch (const UsageError&) {
        EXPECT_TRUE(shard.is_poisoned());
        throw;
      }
    });
  };
  const std::string message = attempt({})[1];
  for (const char* words : {"parameters/w (checkpoint: float32 13x7, state: float32 7x13)",
                            "missing from the checkpoint: parameters/other", "only in the checkpoint: parameters/b"}) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  LoadOptions options;
  options.allow_missing = options.allow_extra = true;
  EXPECT_NE(attempt(options)[0].find("different shape or dtype"), std::string::npos);
  wanted[0].shape = {13, 7};
  EXPECT_EQ(attempt(options), std::vector<std::string>(2));
}

TEST(Directory, ReportsThatItCannotBeListed) {
  const TemporaryDirectory folder;
  const Directory directory = Directory::open(FileSystem::system(), folder.path());
  directory.make_directory("b");
  directory.make_directory("a");
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"a", "b"}));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit exhausted{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &exhausted), 0);
  EXPECT_THROW(static_cast<void>(directory.names()), FaultError);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace aliquot
