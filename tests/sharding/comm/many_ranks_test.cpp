// Starts worlds of many ranks. Checks the time and memory of the start, and how a failure of one rank ends them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <thread>

#include "sharding/world.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test_time_scale.h"

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRanks = 256;  // sanitizers limit the number of threads
#else
constexpr int kRanks = 2048;
#endif
constexpr int kGroupSize = 32;

/// The CPU time of all threads of this process.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return 0;
}

void barrier(World& world, Communicator& group) {
  const auto stream = world.device().make_stream(Lane::kCompute);
  group.barrier(*stream, {"start"});
  stream->synchronize();
}

WorldOptions options(double timeout_seconds) {
  return {.device = DeviceChoice::kHost, .threads_per_rank = 1, .timeout_seconds = timeout_seconds};
}

/// The cost of starting a world.
struct Cost {
  double cpu_seconds = 0, seconds = 0;
  int64_t kib_per_rank = 0;  // resident memory when all ranks have met for the first time
};

/// Starts a world with the calls that every run makes: barriers, an allocation, and groups of kGroupSize ranks.
Cost start_world(int rank_count) {
  const double cpu = cpu_seconds();
  const auto began = Clock::now();
  const int64_t before = resident_kib();
  Cost cost;
  World::threads(
      rank_count,
      [&](World& world) {
        barrier(world, world.communicator());
        if (world.rank() == 0) cost.kib_per_rank = (resident_kib() - before) / rank_count;
        const SymmetricBuffer buffer = world.communicator().allocate(4096, Category::kSlots, "buffer");
        const auto group = world.communicator().split(world.rank() / kGroupSize, world.rank());
        EXPECT_EQ(group->rank(), world.rank() % kGroupSize);
        EXPECT_EQ(group->rank_count(), kGroupSize);
        barrier(world, *group);
        barrier(world, world.communicator());
      },
      options(300));
  cost.cpu_seconds = cpu_seconds() - cpu;
  cost.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::printf("%d ranks: %.2f s, CPU time %.2f s, %lld KiB per rank\n", rank_count, cost.seconds, cost.cpu_seconds,
              static_cast<long long>(cost.kib_per_rank));
  return cost;
}

/// Waiting ranks check the state of all others from time to time. If every rank did so as often as in a small world,
/// the CPU time would be more than 10 s.
TEST(ManyRanks, StartInSeconds) {
  const double before = test::processor_slowness();
  const Cost cost = start_world(kRanks);
  const double slowness = (before + test::processor_slowness()) / 2;
  EXPECT_LT(cost.cpu_seconds / slowness, 6 * test::test_time_scale());
}

/// Runs only in the long suite. If every rank had a copy of the topology and of the numbers of all ranks, 4096 ranks
/// would have 64 KiB more each.
TEST(ManyRanks, DISABLED_ThousandsStartInSeconds) {
  const double before = test::processor_slowness();
  const Cost cost = start_world(2 * kRanks);
  const double slowness = (before + test::processor_slowness()) / 2;
  EXPECT_LT(cost.cpu_seconds / slowness, 20 * test::test_time_scale());
  if (kRanks == 2048) {
    EXPECT_LT(cost.kib_per_rank, 128);
  }
}

TEST(ManyRanks, AFailureOfOneRankEndsAllSoon) {
  Clock::time_point failed;
  std::string message;
  try {
    World::threads(
        kRanks,
        [&](World& world) {
          barrier(world, world.communicator());
          if (world.rank() == kRanks / 2) {
            failed = Clock::now();
            throw UsageError("of this rank");
          }
          world.communicator().gather_objects("own");
        },
        options(300));
  } catch (const UsageError& error) {
    message = error.what();
  }
  EXPECT_EQ(message, "of this rank");
  const double seconds = std::chrono::duration<double>(Clock::now() - failed).count();
  std::printf("%d ranks ended %.2f s after the failure\n", kRanks, seconds);
  EXPECT_LT(seconds, 20 * test::test_time_scale());
}

/// A message that named thousands of ranks could not be read.
TEST(ManyRanks, TheDeadlineNamesAFewOfManyMissingRanks) {
  constexpr int kFew = 20;
  std::string message;
  try {
    World::threads(
        kFew,
        [&](World& world) {
          if (world.rank() == 0) world.communicator().gather_objects("own");
          std::this_thread::sleep_for(std::chrono::seconds(1));
        },
        options(0.2));
  } catch (const CommunicationError& error) {
    message = error.what();
  }
  EXPECT_EQ(message.substr(0, message.find(';')), "rank 0 waited 0.2 s for the other ranks to set up together");
  EXPECT_NE(message.find("; rank 8 never arrived; and 11 more ranks"), std::string::npos) << message;
  EXPECT_EQ(message.find("rank 9 "), std::string::npos) << message;
}

}  // namespace
}  // namespace aliquot
