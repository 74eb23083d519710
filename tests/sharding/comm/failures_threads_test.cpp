// Tests how thread ranks behave when one of them fails. tests/support/failing_ranks.cpp has such tests for processes
// under mpirun.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include <thread>

#include "kernels/system/error.h"
#include "kernels/system/log.h"
#include "sharding/world.h"
#include "tests/support/failing_world.h"
#include "tests/support/limited_memory.h"

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;

TEST(Failures, DeadlineErrorNamesTheRankThatNeverArrived) {
  for (const Lane lane : {Lane::kCompute, Lane::kReduce}) {
    const auto message = failure_of(3, [&](World& world) {
      barrier(world, lane, {"h.3", 117});
      if (world.rank() == 1)
        std::this_thread::sleep_for(std::chrono::milliseconds(800));
      else
        barrier(world, lane, {"h.7", 118});
    });
    expect_contains(
        message, {"waited 0.3 s in barrier #2 (h.7, step 118)", "rank 1 never arrived", "barrier #1 (h.3, step 117)"});
  }
}

/// Ranks may be in several groups, so the message names the group of the collective, if it has a name.
TEST(Failures, DeadlineErrorNamesTheGroup) {
  constexpr double kDeadlineSeconds = 1.5;  // also applies to split(), which may take long on a busy machine
  for (const bool is_named : {false, true}) {
    const auto wait_in_group = [&](World& world) {
      const std::string name = is_named ? fmt::format("shard group of pipeline stage {}", world.rank() / 2) : "";
      const auto pair = world.communicator().split(world.rank() / 2, world.rank(), name);
      if (world.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(2200));
      if (world.rank() == 2) barrier(world, *pair, Lane::kReduce, {"h.7", 118});
    };
    const auto message = failure_of(4, wait_in_group, kDeadlineSeconds);
    expect_contains(message, {is_named ? "rank 2 waited 1.5 s in barrier #1 (h.7, step 118) of the shard group of "
                                         "pipeline stage 1; rank 3 never arrived"
                                       : "rank 2 waited 1.5 s in barrier #1 (h.7, step 118); rank 3 never arrived, and "
                                         "it had no earlier operation"});
  }
}

TEST(Failures, DisagreementNamesTheGroup) {
  const auto message = failure_of(2, [](World& world) {
    const auto group = world.communicator().split(0, world.rank(), "replicate group of shard 0");
    barrier(world, *group, Lane::kReduce, {world.rank() == 0 ? "h.1" : "h.2", 7});
  });
  expect_contains(message, {"ranks disagree at collective #1 of the reduce lane of the replicate group of shard 0: "});
}

/// A rank that returns early must be reported immediately and not at the deadline.
TEST(Failures, RankThatReturnsEarlyIsNamedImmediately) {
  const auto start = Clock::now();
  for (const Lane lane : {Lane::kCompute, Lane::kReduce}) {
    const auto collective = failure_of(
        3,
        [&](World& world) {
          barrier(world, lane, {"h.3", 117});
          if (world.rank() != 1) barrier(world, lane, {"h.7", 118});
        },
        600);
    expect_contains(collective,
                    {" s in barrier #2 (h.7, step 118)", "rank 1 has returned from its function before it arrived",
                     "barrier #1 (h.3, step 117)"});
  }
  const auto bootstrap = failure_of(
      3,
      [](World& world) {
        if (world.rank() != 1) world.communicator().gather_objects("own");
      },
      600);
  expect_contains(bootstrap,
                  {" waits for the other ranks to set up together, but rank 1 has returned from its function"});
  for (const bool with_barrier : {false, true}) {
    const auto in_a_group = failure_of(
        4,
        [&](World& world) {
          const auto pair = world.communicator().split(world.rank() / 2, world.rank());
          if (world.rank() == 3) return;
          with_barrier ? barrier(world, *pair, Lane::kGather, {}) : void(pair->gather_objects("own"));
        },
        600);
    expect_contains(in_a_group, {"rank 2 wait", "rank 3 has returned"});
  }
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 20);
}

/// One rank waits at a rendezvous and the others wait in a barrier, so no rank can ever continue.
TEST(Failures, RanksThatWaitInDifferentCallsFailImmediately) {
  const auto start = Clock::now();
  for (const bool in_a_group : {false, true}) {
    const auto message = failure_of(
        4,
        [&](World& world) {
          const auto group = world.communicator().split(0, world.rank());
          Communicator& ranks = in_a_group ? *group : world.communicator();
          if (world.rank() == 2) {
            ranks.gather_objects("own");
          } else {
            barrier(world, ranks, Lane::kCompute, {"sum of losses"});
          }
        },
        600);
    expect_contains(message, {" is in barrier #",
                              " (sum of losses), but rank 2 is at a rendezvous to set up: all ranks must make the same "
                              "calls in the same order"});
  }
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 20);
}

/// The own threads of two ranks wait for two lanes, and each lane waits for the other rank.
TEST(Failures, RanksThatWaitOnDifferentLanesFailImmediately) {
  const auto start = Clock::now();
  for (const bool in_a_group : {false, true}) {
    const auto message = failure_of(
        3,
        [&](World& world) {
          const auto group = world.communicator().split(0, world.rank());
          Communicator& ranks = in_a_group ? *group : world.communicator();
          barrier(world, ranks, Lane::kReduce, {"earlier"});
          barrier(world, ranks, world.rank() == 1 ? Lane::kReduce : Lane::kCompute, {world.rank() == 1 ? "b" : "a"});
        },
        600);
    expect_contains(message,
                    {"no rank can continue: rank 0 waits in barrier #1 (a)", "rank 1 waits in barrier #2 (b)",
                     "rank 2 waits in barrier #1 (a)", "all ranks must make the same calls in the same order"});
  }
  const auto at_a_rendezvous = failure_of(
      2,
      [&](World& world) {
        if (world.rank() == 0) {
          world.communicator().gather_objects("own");
        } else {
          barrier(world, Lane::kGather, {"h.3"});
        }
      },
      600);
  expect_contains(at_a_rendezvous,
                  {"rank 0 waits for the other ranks to set up together", "rank 1 waits in barrier #1 (h.3)"});
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 20);
}

/// A program may throw a value that is not a std::exception.
TEST(Failures, AnExceptionOfAnyTypeEndsAllRanks) {
  std::atomic<int> aborted{0};
  const auto run = [&] {
    World::threads(2,
                   [&](World& world) {
                     if (world.rank() == 1) throw 42;
                     try {
                       world.communicator().gather_objects("own");
                     } catch (const CommunicationError& error) {
                       EXPECT_STREQ(error.what(), "rank 1 failed");
                       ++aborted;
                       throw;
                     }
                   },
                   {.device = DeviceChoice::kHost, .timeout_seconds = 20});
  };
  EXPECT_THROW(run(), int);
  EXPECT_EQ(aborted, 1);
}

/// A rank that took part in all collectives may return before the other ranks have detected its arrival.
TEST(Failures, ReturnRightAfterTheLastCollectiveIsNotAFailure) {
  for (int round = 0; round < 20; ++round) {
    World::threads(3,
                   [](World& world) {
                     world.communicator().gather_objects("own");
                     if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(15));
                     barrier(world, Lane::kReduce, {});
                     if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(15));
                   },
                   {.device = DeviceChoice::kHost, .timeout_seconds = 20});
  }
}

/// A single thread cannot be terminated. Instead, World::threads() calls the callback on_stuck once, and the callback
/// decides what happens.
TEST(Failures, OnStuckReceivesTheRanksThatDoNotReturn) {
  std::string stuck_ranks, first_error;
  std::atomic<bool> released = false;
  const auto on_stuck = [&](std::exception_ptr failure, const std::string& who) {
    stuck_ranks += who;
    try {
      std::rethrow_exception(std::move(failure));
    } catch (const std::exception& error) {
      first_error = error.what();
    }
    released = true;
  };
  const auto body = [&](World& world) {
    if (world.rank() == 2) throw std::runtime_error("the disk is gone");
    while (world.rank() != 1 && !released) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  EXPECT_THROW(World::threads(4, body, {.timeout_seconds = 0.2, .on_stuck = on_stuck}), std::runtime_error);
  EXPECT_EQ(stuck_ranks, "rank 0, rank 3");
  EXPECT_EQ(first_error, "the disk is gone");
}

TEST(Failures, ExceptionOnOneRankStopsAllRanks) {
  const auto message = failure_of(
      4,
      [](World& world) {
        if (world.rank() == 2) throw std::runtime_error("the disk is gone");
        barrier(world, Lane::kCompute, {});
      },
      20);
  EXPECT_EQ(message, "the disk is gone");
}

TEST(Failures, ErrorsOfOtherRanksNameTheFailedRank) {
  std::string other_error;
  failure_of(
      2,
      [&](World& world) {
        if (world.rank() == 1) throw std::runtime_error("the disk is gone");
        try {
          barrier(world, Lane::kGather, {});
        } catch (const CommunicationError& error) {
          other_error = error.what();
          throw;
        }
      },
      20);
  expect_contains(other_error, {"rank 1 failed: the disk is gone"});
}

std::atomic<bool> other_has_failed{false}, other_failed_first{false};

/// Simulates a file system that hangs: blocks rank 1's log message until the other rank has failed, or for 3 seconds.
void hang_in_the_file_system(std::string_view message) noexcept {
  if (!message.starts_with("rank 1 cannot write its flight record")) return;
  const auto deadline = Clock::now() + std::chrono::seconds(3);
  while (!other_has_failed && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  other_failed_first = other_has_failed.load();
}

TEST(Failures, OtherRanksFailBeforeAFlightRecordIsWritten) {
  const LogSink before = set_log_sink(hang_in_the_file_system);
  const auto body = [](World& world) {
    if (world.rank() == 1) throw std::runtime_error("the disk is gone");
    try {
      barrier(world, Lane::kGather, {});
    } catch (const CommunicationError&) {
      other_has_failed = true;
      throw;
    }
  };
  const WorldOptions options{
      .device = DeviceChoice::kHost, .timeout_seconds = 20, .flight_directory = "/no/such/folder"};
  EXPECT_THROW(World::threads(2, body, options), std::runtime_error);
  set_log_sink(before);
  EXPECT_TRUE(other_failed_first);
}

TEST(Failures, ThrowingWithWorkQueuedOnAStreamDoesNotHang) {
  const auto message = failure_of(
      2,
      [](World& world) {
        const auto stream = world.device().make_stream(Lane::kGather);
        if (world.rank() == 0) world.communicator().barrier(*stream, {"never"});
        if (world.rank() == 0) throw std::runtime_error("thrown with queued work");
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        stream->synchronize();
      },
      20);
  EXPECT_EQ(message, "thrown with queued work");
}

/// A failed stream rethrows its error only when the rank synchronizes with the stream. Here the rank's thread waits for
/// other ranks, so the failure of the stream must abort the world.
TEST(Failures, ExceptionOnAStreamStopsAllRanksImmediately) {
  const auto start = Clock::now();
  const auto message = failure_of(
      3,
      [](World& world) {
        const auto stream = world.device().make_stream(Lane::kReduce);
        if (world.rank() == 1) stream->run([] { throw std::runtime_error("the disk is gone"); });
        world.communicator().barrier(*stream, {"h.1"});
        const auto own = world.device().make_stream(Lane::kCompute);
        world.communicator().await(*own, Lane::kReduce, 1, {"h.1"});
      },
      20);
  EXPECT_EQ(message, "rank 1 failed: the disk is gone");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST(Failures, AbortStopsARankThatWaits) {
  const auto message = failure_of(
      2,
      [](World& world) {
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          world.communicator().abort("rank 1 was told to stop");
          return;
        }
        barrier(world, Lane::kCompute, {});
      },
      20);
  expect_contains(message, {"rank 1 was told to stop"});
}

TEST(Failures, RankThatMissesARendezvousIsNamed) {
  const auto message = failure_of(3, [](World& world) {
    if (world.rank() == 2)
      std::this_thread::sleep_for(std::chrono::milliseconds(800));
    else
      world.communicator().gather_objects("here");
  });
  expect_contains(message, {"waited 0.3 s", "rank 2 never arrived"});
}

/// Starts more ranks than the process can have threads. No rank may wait forever.
[[noreturn]] void start_too_many_ranks() {
  exit_after_running_in_limited_memory(int64_t{400} << 20, [] {
    World::threads(1000, [](World& world) { barrier(world, Lane::kCompute, {"start"}); },
                   {.device = DeviceChoice::kHost, .threads_per_rank = 1, .timeout_seconds = 30});
  });
}

TEST(FailuresDeathTest, RankWhoseThreadCannotStartIsNamed) {
  if (!kCanLimitMemory) GTEST_SKIP() << "the memory of a process cannot be limited under this sanitizer";
  EXPECT_EXIT(start_too_many_ranks(), testing::ExitedWithCode(2), "cannot start a thread for rank [0-9]+ of 1000: ");
}

TEST(Failures, ExceptionOnOneRankStopsAllRanksOfAGroup) {
  const auto start = Clock::now();
  const auto message = failure_of(
      2,
      [](World& world) {
        const auto group = world.communicator().split(0, 0)->split(0, 0);
        if (world.rank() == 1) throw std::runtime_error("the disk is gone");
        barrier(world, *group, Lane::kReduce, {});
      },
      20);
  EXPECT_EQ(message, "the disk is gone");
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 2);
}

TEST(Failures, ErrorNamesTheGlobalRankOfAMissingRankInAGroup) {
  const auto message = failure_of(4, [](World& world) {
    const auto group = world.communicator().split(world.rank() % 2, 0);
    if (world.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    if (world.rank() == 1) barrier(world, *group, Lane::kReduce, {});
  });
  expect_contains(message, {"rank 1 waited 0.3 s in barrier #1", "rank 3 never arrived"});
}

/// Rank 0 waits for rank 1, which waits in another group for rank 2. The error must name rank 2.
TEST(Failures, ErrorNamesTheRankAtTheEndOfAChainOfWaits) {
  const auto message = failure_of(3, [](World& world) {
    const auto first = world.communicator().split(world.rank() == 2 ? 1 : 0, 0);
    const auto second = world.communicator().split(world.rank() == 0 ? 1 : 0, 0);
    if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    if (world.rank() == 2) return;
    const auto stream = world.device().make_stream(Lane::kReduce);
    const auto own = world.device().make_stream(Lane::kCompute);
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (world.rank() == 1) second->barrier(*stream, {"h.1", 3});
    first->publish(*stream, 5);
    first->await(*own, Lane::kReduce, 5, {"h.0", 3});
  });
  expect_contains(message, {"rank 1 waited 0.3 s in barrier #1 (h.1, step 3); rank 2 never arrived"});
}

TEST(Failures, ErrorOfATransferNamesItsLabelAndTheMissingRank) {
  for (const bool sends : {true, false}) {
    const auto message = failure_of(3, [&](World& world) {
      const auto pair = world.communicator().split(world.rank() == 0 ? 1 : 0, 0);
      const auto buffer = pair->allocate(64, Category::kSlots, "message");
      if (world.rank() == 0) return;
      if (world.rank() == 2) return std::this_thread::sleep_for(std::chrono::milliseconds(800));
      const Transfer own{sends ? 0 : 1, sends ? 1 : 0, 0, 0, 64};
      const auto stream = world.device().make_stream(Lane::kForward0);
      pair->transfer(*stream, {{&buffer, 0}, {&buffer, 0}, {&own, 1}, 64}, {"pipeline stage 1 to 2, m3, h.1", 9});
      stream->synchronize();
    });
    expect_contains(message, {"rank 1 waited 0.3 s in transfer of 64 bytes #1",
                              "(pipeline stage 1 to 2, m3, h.1, step 9)", "rank 2 never arrived"});
  }
}

TEST(Failures, AllocationFailureOnOneRankThrowsOnAllRanks) {
  const auto message = failure_of(
      3,
      [](World& world) {
        if (world.rank() == 1) world.device().ledger().set_limit_bytes(world.device().ledger().held_bytes() + 4096);
        EXPECT_THROW(world.communicator().allocate(1 << 20, Category::kOptimizer, "the moments"), UnavailableError);
        barrier(world, Lane::kCompute, {});  // the world remains usable
      },
      20);
  EXPECT_EQ(message, "");
}

TEST(Failures, ErrorDuringSetupOnOneRankStopsAllRanks) {
  const auto start = Clock::now();
  std::string message;
  try {
    World::threads(2, [](World& world) { barrier(world, Lane::kCompute, {}); },
                   {.timeout_seconds = 20, .make_device = [](int rank) {
                      auto device = make_host_device(1);
                      if (rank == 1) device->ledger().set_limit_bytes(1000);
                      return device;
                    }});
  } catch (const std::exception& error) {
    message = error.what();
  }
  expect_contains(message, {"mailboxes and signals"});
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 5);
}

}  // namespace
}  // namespace aliquot
