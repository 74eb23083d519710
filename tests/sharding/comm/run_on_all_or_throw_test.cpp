// Tests of errors that all ranks throw together: type, message, and errors that are rethrown unchanged.
#include "sharding/comm/run_on_all_or_throw.h"

#include <functional>
#include <gtest/gtest.h>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/system/checkpoint_error.h"
#include "sharding/comm/bootstrap_threads.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

using Body = std::function<void(const StepGroup& ranks)>;

/// Exit code and message of the error that a rank threw, or nullopt if it threw no error.
using Thrown = std::optional<std::pair<ExitCode, std::string>>;

Thrown thrown_by(const Body& body, const StepGroup& ranks) {
  try {
    body(ranks);
  } catch (const Error& error) {
    return std::pair{error.exit_code(), std::string(error.what())};
  }
  return std::nullopt;
}

std::vector<Thrown> over_communicators(int rank_count, const Body& body) {
  std::vector<Thrown> thrown(static_cast<std::size_t>(rank_count));
  World::threads(rank_count, [&](World& world) { thrown[world.rank()] = thrown_by(body, world.communicator()); },
                 {.device = DeviceChoice::kHost});
  return thrown;
}

std::vector<Thrown> over_bootstraps(int rank_count, const Body& body) {
  const auto store = make_threads_bootstrap_store(rank_count, 20);
  std::vector<Thrown> thrown(static_cast<std::size_t>(rank_count));
  std::vector<std::thread> ranks;
  for (int r = 0; r < rank_count; ++r) {
    ranks.emplace_back([&, r] {
      const auto bootstrap = make_threads_bootstrap(store, r);
      thrown[static_cast<std::size_t>(r)] = thrown_by(body, *bootstrap);
    });
  }
  for (auto& rank : ranks) rank.join();
  return thrown;
}

void expect_on_all_ranks(int rank_count, const Thrown& expected, const Body& body) {
  const std::vector<Thrown> everywhere(static_cast<std::size_t>(rank_count), expected);
  EXPECT_EQ(over_communicators(rank_count, body), everywhere);
  EXPECT_EQ(over_bootstraps(rank_count, body), everywhere);
}

TEST(RunOnAllOrThrow, GathersResultsInRankOrder) {
  expect_on_all_ranks(3, std::nullopt, [](const StepGroup& ranks) {
    const auto own = [&] { return std::string(static_cast<std::size_t>(ranks.rank()), '\0') + "x"; };
    EXPECT_EQ(gather_or_throw(ranks, own),
              (std::vector{std::string("x"), std::string("\0x", 2), std::string("\0\0x", 3)}));
    EXPECT_EQ(broadcast_from_rank_0(ranks, [&] { return std::to_string(ranks.rank()); }), "0");
    run_on_all_or_throw(ranks, [] {});
  });
}

/// An error on one rank becomes an error with the same exit code on all ranks, and the group remains usable.
TEST(RunOnAllOrThrow, ErrorOfOneRankIsThrownOnAllRanksWithItsExitCode) {
  for (const ExitCode code :
       {ExitCode::kUsage, ExitCode::kUnavailable, ExitCode::kFault, ExitCode::kCheckpoint, ExitCode::kNotFinite}) {
    expect_on_all_ranks(3, std::pair{code, std::string("rank 1: no")}, [&](const StepGroup& ranks) {
      EXPECT_THROW(run_on_all_or_throw(ranks, [&] { throw Error(code, "no"); }), Error);
      run_on_all_or_throw(ranks, [&] {
        if (ranks.rank() == 1) throw Error(code, "no");
      });
    });
  }
}

/// Callers must be able to catch the error by its type.
TEST(RunOnAllOrThrow, KeepsTheTypeOfTheError) {
  expect_on_all_ranks(2, std::nullopt, [](const StepGroup& ranks) {
    const auto fail_as = [&](const auto& error) {
      run_on_all_or_throw(ranks, [&] {
        if (ranks.rank() == 1) throw error;
      });
    };
    EXPECT_THROW(fail_as(UsageError("no")), UsageError);
    EXPECT_THROW(fail_as(UnavailableError("no")), UnavailableError);
    EXPECT_THROW(fail_as(FaultError("no")), FaultError);
    EXPECT_THROW(fail_as(NotFiniteError("no")), NotFiniteError);
    EXPECT_THROW(fail_as(CheckpointError("no")), CheckpointError);
  });
}

TEST(RunOnAllOrThrow, OtherExceptionsBecomeFaults) {
  expect_on_all_ranks(2, std::pair{ExitCode::kFault, std::string("rank 0: odd; rank 1: out of memory")},
                      [](const StepGroup& ranks) {
                        run_on_all_or_throw(ranks, [&] {
                          if (ranks.rank() == 0) throw std::logic_error("odd");
                          throw std::bad_alloc();
                        });
                      });
}

TEST(RunOnAllOrThrow, BadAllocBecomesUnavailable) {
  expect_on_all_ranks(2, std::pair{ExitCode::kUnavailable, std::string("rank 1: out of memory")},
                      [](const StepGroup& ranks) {
                        run_on_all_or_throw(ranks, [&] {
                          if (ranks.rank() == 1) throw std::bad_alloc();
                        });
                      });
}

TEST(RunOnAllOrThrow, MessageListsEightFailedRanksAndTheFirstDeterminesTheExitCode) {
  const std::string named = "rank 1: 1; rank 2: 2; rank 3: 3; rank 4: 4; rank 5: 5; rank 6: 6; rank 7: 7; rank 8: 8";
  expect_on_all_ranks(11, std::pair{ExitCode::kUsage, named + "; and 2 more ranks"}, [](const StepGroup& ranks) {
    run_on_all_or_throw(ranks, [&] {
      if (ranks.rank() == 1) throw UsageError("1");
      if (ranks.rank() > 1) throw FaultError(std::to_string(ranks.rank()));
    });
  });
}

TEST(RunOnAllOrThrow, ErrorOfAllRanksNamesNoRank) {
  expect_on_all_ranks(3, std::pair{ExitCode::kUsage, std::string("no")},
                      [](const StepGroup& ranks) { run_on_all_or_throw(ranks, [] { throw UsageError("no"); }); });
}

/// If a smaller group has thrown an error together, the message contains it once, with the rank numbers of that group.
TEST(RunOnAllOrThrow, NestedFailuresAppearOnce) {
  std::vector<Thrown> thrown(4);
  World::threads(4,
                 [&](World& world) {
                   const auto half = world.communicator().split(world.rank() / 2, world.rank());
                   thrown[world.rank()] = thrown_by(
                       [&](const StepGroup& ranks) {
                         run_on_all_or_throw(ranks, [&] {
                           run_on_all_or_throw(*half, [&] {
                             if (world.rank() == 3) throw FaultError("no");
                           });
                         });
                       },
                       world.communicator());
                 },
                 {.device = DeviceChoice::kHost});
  EXPECT_EQ(thrown, (std::vector<Thrown>(4, std::pair{ExitCode::kFault, std::string("rank 1: no")})));
}

TEST(RunOnAllOrThrow, DifferentSizesThrow) {
  expect_on_all_ranks(2,
                      std::pair{ExitCode::kFault,
                                std::string("ranks disagree about the size of arena: 8 bytes on rank 0, 9 on rank 1")},
                      [](const StepGroup& ranks) {
                        expect_same_sizes(ranks, {"8", "9 true"}, "arena");
                      });
}

TEST(RunOnAllOrThrow, CommunicationErrorIsRethrownWithoutCommunication) {
  // After a CommunicationError, run_on_all_or_throw() does not communicate. So the call throws on rank 0 although rank
  // 1 never calls the function.
  const auto store = make_threads_bootstrap_store(2, 20);
  const auto bootstrap = make_threads_bootstrap(store, 0);
  EXPECT_THROW(run_on_all_or_throw(*bootstrap, [] { throw CommunicationError("lost"); }), CommunicationError);
}

}  // namespace
}  // namespace aliquot
