// What ranks say and do when one of them fails, in the threads world. Under mpirun a script does the same to processes.
#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <stdexcept>
#include <thread>

#include "kernels/error.h"
#include "sharding/world.h"
#include "tests/support/scarce_memory.h"

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;

/// Runs `body` in a world with a short deadline and returns what World::threads threw.
std::string failure_of(int rank_count, const std::function<void(World&)>& body, double timeout_seconds = 0.3) {
  const auto start = Clock::now();
  std::string message;
  try {
    World::threads(rank_count, body, {.device = DeviceChoice::kHost, .timeout_seconds = timeout_seconds});
  } catch (const std::exception& error) {
    message = error.what();
  }
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), timeout_seconds + 2.0) << "somebody hung";
  return message;
}

bool says(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts) {
    if (message.find(part) == std::string::npos) {
      ADD_FAILURE() << "\"" << message << "\" does not say \"" << part << "\"";
      return false;
    }
  }
  return true;
}

void barrier(World& world, Lane lane, Label label) {
  const auto stream = world.device().make_stream(lane);
  world.communicator().barrier(*stream, label);
  stream->synchronize();
}

TEST(Failures, ARankThatNeverArrivesIsNamedAtTheDeadline) {
  for (const Lane lane : {Lane::kCompute, Lane::kReduce}) {
    const auto message = failure_of(3, [&](World& world) {
      barrier(world, lane, {"h.3", 117});
      if (world.rank() == 1)
        std::this_thread::sleep_for(std::chrono::milliseconds(800));
      else
        barrier(world, lane, {"h.7", 118});
    });
    says(message, {"waited 0.3 s in barrier #2 (h.7, step 118)", "rank 1 never arrived", "barrier #1 (h.3, step 117)"});
  }
}

TEST(Failures, ARankThatThrowsTakesTheOthersWithIt) {
  const auto message = failure_of(
      4,
      [](World& world) {
        if (world.rank() == 2) throw std::runtime_error("the disk is gone");
        barrier(world, Lane::kCompute, {});
      },
      20);
  EXPECT_EQ(message, "the disk is gone");
}

TEST(Failures, TheOthersAreToldWhichRankFailed) {
  std::string said;
  failure_of(
      2,
      [&](World& world) {
        if (world.rank() == 1) throw std::runtime_error("the disk is gone");
        try {
          barrier(world, Lane::kGather, {});
        } catch (const CommunicationError& error) {
          said = error.what();
          throw;
        }
      },
      20);
  says(said, {"rank 1 failed: the disk is gone"});
}

TEST(Failures, ThrowingWithWorkQueuedOnAStreamDoesNotHang) {
  const auto message = failure_of(
      2,
      [](World& world) {
        const auto stream = world.device().make_stream(Lane::kGather);
        if (world.rank() == 0) world.communicator().barrier(*stream, {"never"});
        if (world.rank() == 0) throw std::runtime_error("thrown beside it");
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        stream->synchronize();
      },
      20);
  EXPECT_EQ(message, "thrown beside it");
}

TEST(Failures, DifferentCountsAreFoundBeforeAByteIsUsed) {
  std::atomic<int> touched{0};
  const auto message = failure_of(
      2,
      [&](World& world) {
        auto& ranks = world.communicator();
        const auto whole = ranks.allocate(8192, Category::kSlots, "whole");
        const auto own = ranks.allocate(4096, Category::kSlots, "own");
        std::fill_n(own.local(), 4096, std::byte{1});
        std::fill_n(whole.local(), 8192, std::byte{0});
        const auto stream = world.device().make_stream(Lane::kGather);
        try {
          ranks.all_gather(*stream, {&whole, 0}, {&own, 0}, world.rank() == 0 ? 4096 : 2048, {"h.1"});
          stream->synchronize();
        } catch (...) {
          for (int i = 0; i < 8192; ++i) touched += whole.local()[i] != std::byte{0};
          throw;
        }
      },
      20);
  says(message, {"disagree", "#1", "all-gather of 4096 bytes", "all-gather of 2048 bytes"});
  EXPECT_EQ(touched, 0);
}

TEST(Failures, DifferentOperationsAreFound) {
  const auto message = failure_of(
      3,
      [](World& world) {
        auto& ranks = world.communicator();
        const auto stream = world.device().make_stream(Lane::kReduce);
        double number = 1;
        if (world.rank() == 2)
          ranks.all_reduce(*stream, {&number, 1}, Reduction::kSum, {});
        else
          ranks.barrier(*stream, {});
        stream->synchronize();
      },
      20);
  says(message, {"disagree", "barrier", "all-reduce of 1 numbers"});
}

TEST(Failures, AnAbortReachesARankThatSleeps) {
  const auto message = failure_of(
      2,
      [](World& world) {
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          world.communicator().abort("rank 1 was asked to stop");
          return;
        }
        barrier(world, Lane::kCompute, {});
      },
      20);
  says(message, {"rank 1 was asked to stop"});
}

TEST(Failures, ARankMissingWhileTheWorldIsMadeIsNamed) {
  const auto message = failure_of(3, [](World& world) {
    if (world.rank() == 2)
      std::this_thread::sleep_for(std::chrono::milliseconds(800));
    else
      world.communicator().gather_objects("here");
  });
  says(message, {"waited 0.3 s", "rank 2 never arrived"});
}

/// In a process that gets few threads: ends with 2 and the sentence, and no rank is left waiting.
[[noreturn]] void start_too_many_ranks() {
  if (!limit_memory(int64_t{400} << 20)) std::exit(9);
  try {
    World::threads(1000, [](World& world) { barrier(world, Lane::kCompute, {"start"}); },
                   {.device = DeviceChoice::kHost, .threads_per_rank = 1, .timeout_seconds = 30});
  } catch (const UnavailableError& error) {
    std::fputs(error.what(), stderr);
    std::exit(2);
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
  }
  std::exit(0);
}

TEST(FailuresDeathTest, ARankThatGetsNoThreadIsNamed) {
  if (!kCanLimitMemory) GTEST_SKIP() << "under this sanitizer the process's memory cannot be limited";
  EXPECT_EXIT(start_too_many_ranks(), testing::ExitedWithCode(2),
              "the system gives no thread for rank [0-9]+ of 1000: ");
}

}  // namespace
}  // namespace aliquot
