// Tests how ranks on simulated GPUs behave when one of them fails, with and without NCCL.
#include <chrono>
#include <gtest/gtest.h>
#include <stdexcept>
#include <thread>

#include "sharding/comm/bootstrap_threads.h"
#include "sharding/nccl/communicator_nccl.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

using Clock = std::chrono::steady_clock;

class GpuFailures : public testing::TestWithParam<WorldChoice> {
 protected:
  /// Runs `body` in a world and returns the message of the exception from World::threads, or "".
  std::string failure_of(int rank_count, const std::function<void(World&)>& body, double timeout_seconds = 20) {
    const auto start = Clock::now();
    std::string message;
    try {
      World::threads(rank_count, body,
                     {.device = DeviceChoice::kCuda, .kind = GetParam(), .timeout_seconds = timeout_seconds});
    } catch (const std::exception& error) {
      message = error.what();
    }
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 5.0) << "a rank hung";
    return message;
  }
};

void expect_contains(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << '"' << message << "\" does not contain \"" << part << '"';
  }
}

void barrier(World& world, Label label) {
  const auto stream = world.device().make_stream(Lane::kReduce);
  world.communicator().barrier(*stream, label);
  stream->synchronize();
}

TEST_P(GpuFailures, DeadlineErrorNamesTheRankThatNeverArrived) {
  const auto message = failure_of(
      3,
      [](World& world) {
        barrier(world, {"h.3", 117});
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        } else {
          barrier(world, {"h.7", 118});
        }
      },
      0.7);
  expect_contains(message,
                  {"waited 0.7 s in barrier #2 (h.7, step 118)", "rank 1 never arrived", "barrier #1 (h.3, step 117)"});
}

TEST_P(GpuFailures, DeadlineErrorNamesTheGroup) {
  const auto message = failure_of(
      4,
      [](World& world) {
        const auto pair = world.communicator().split(world.rank() / 2, world.rank(), "shard group of a replica");
        if (world.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        if (world.rank() != 2) return;
        const auto stream = world.device().make_stream(Lane::kReduce);
        pair->barrier(*stream, {"h.7", 118});
        stream->synchronize();
      },
      0.7);
  expect_contains(message, {"rank 2 waited 0.7 s in barrier #1 (h.7, step 118) of the shard group of a replica; rank 3 "
                            "never arrived"});
}

TEST_P(GpuFailures, ExceptionOnOneRankStopsAllRanks) {
  const auto message = failure_of(4, [](World& world) {
    if (world.rank() == 2) throw std::runtime_error("the disk is gone");
    barrier(world, {});
  });
  EXPECT_EQ(message, "the disk is gone");
}

TEST_P(GpuFailures, ExceptionWithWorkInFlightIsReported) {
  const auto message = failure_of(2, [](World& world) {
    auto& ranks = world.communicator();
    double number = 1;
    const auto stream = world.device().make_stream(Lane::kGather);
    const auto gathered = ranks.allocate(2 << 20, Category::kSlots, "gathered");
    ranks.all_gather_in_place(*stream, {&gathered, 0}, 1 << 20, {"h.1"});
    ranks.all_reduce(*stream, {&number, 1}, Reduction::kSum, {});
    if (world.rank() == 1) throw std::runtime_error("thrown with work in flight");
    stream->synchronize();
  });
  EXPECT_EQ(message, "thrown with work in flight");
}

TEST_P(GpuFailures, DifferentCountsAreDetected) {
  const auto message = failure_of(2, [](World& world) {
    auto& ranks = world.communicator();
    const auto stream = world.device().make_stream(Lane::kGather);
    const auto gathered = ranks.allocate(8192, Category::kSlots, "gathered");
    ranks.all_gather_in_place(*stream, {&gathered, 0}, world.rank() == 0 ? 4096 : 2048, {"h.1"});
    stream->synchronize();
  });
  expect_contains(message, {"disagree", "#1", "all-gather of 4096 bytes", "all-gather of 2048 bytes"});
}

TEST_P(GpuFailures, DifferentAllocationSizesThrow) {
  const auto message = failure_of(
      2, [](World& world) { world.communicator().allocate(4096 * (1 + world.rank()), Category::kSlots, "the slot"); });
  expect_contains(message, {"disagree about the size of the slot: 4096 bytes on rank 0, 8192 on rank 1"});
}

TEST_P(GpuFailures, ExceptionOnOneRankStopsAllRanksOfAGroup) {
  const auto message = failure_of(3, [](World& world) {
    const auto group = world.communicator().split(world.rank() == 2 ? 1 : 0, 0);
    const auto all_ranks = world.communicator().split(0, 0);
    if (world.rank() == 1) throw std::runtime_error("the disk is gone");
    const auto stream = world.device().make_stream(Lane::kReduce);
    (world.rank() == 0 ? *group : *all_ranks).barrier(*stream, {"h.1"});
    stream->synchronize();
  });
  EXPECT_EQ(message, "the disk is gone");
}

TEST_P(GpuFailures, AllocationFailureOnOneRankThrowsOnAllRanks) {
  const auto message = failure_of(2, [](World& world) {
    if (world.rank() == 1) world.device().ledger().set_limit_bytes(4096);
    world.communicator().allocate(1 << 20, Category::kOptimizer, "the moments");
  });
  expect_contains(message, {"rank 1", "the moments"});
}

INSTANTIATE_TEST_SUITE_P(Worlds, GpuFailures, testing::Values(WorldChoice::kThreads, WorldChoice::kNccl),
                         [](const auto& test) { return test.param == WorldChoice::kNccl ? "Nccl" : "Threads"; });

/// Runs two ranks without shared memory, as on two nodes, so that only the wait for the GPU detects the error. Rank 0
/// issues `issued_count` barriers and rank 1 issues `matched_count`. Returns the error message of rank 0.
std::string hang_message(int issued_count, int matched_count) {
  const auto store = make_threads_bootstrap_store(2, 20);
  std::string message;
  const auto rank = [&](int r) {
    auto device = make_cuda_device(r);
    auto ranks = make_nccl_communicator(*device, {.bootstrap = make_threads_bootstrap(store, r),
                                                  .topology = Topology::one_host(2),
                                                  .make_node_memory = {},
                                                  .timeout_seconds = 0.5,
                                                  .group = "shard group of replica 1"});
    ranks->gather_objects("made");
    const auto stream = device->make_stream(Lane::kGather);
    try {
      for (int i = 0; i < (r == 0 ? issued_count : matched_count); ++i) ranks->barrier(*stream, {"h.2", i});
      if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      stream->synchronize();
      EXPECT_NE(r, 0) << "rank 0's barriers ended although rank 1 issued fewer";
    } catch (const CommunicationError& error) {
      if (r == 0) message = error.what();
    }
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  return message;
}

TEST(NcclWatchdogTest, CollectiveThatNeverCompletesOnTheGpuIsAborted) {
  expect_contains(
      hang_message(1, 0),
      {"rank 0 waited 0.5 s for the GPU to complete barrier #1 (h.2, step 0) of the shard group of replica 1; ",
       "another rank never issued it"});
}

TEST(NcclWatchdogTest, ErrorNamesTheFirstUnmatchedCollective) {
  expect_contains(
      hang_message(100, 80),
      {"rank 0 waited 0.5 s for the GPU to complete barrier #81 (h.2, step 80) of the shard group of replica 1; ",
       "another rank never issued it"});
}

TEST(GpuWorlds, NcclRejectsRanksThatShareAGpu) {
  try {
    World::threads(5, [](World&) {}, {.device = DeviceChoice::kCuda, .kind = WorldChoice::kNccl});
    FAIL() << "World::threads() made an NCCL world of five ranks on four GPUs";
  } catch (const UnavailableError& error) {
    expect_contains(error.what(), {"ranks 0 and 4 share the GPU 0000:00:00.0,"});
  }
}

TEST(GpuWorlds, NcclIsUsedIfSeveralRanksDoNotShareGpus) {
  const auto describe_world = [](int rank_count) {
    std::string description;
    World::threads(rank_count, [&](World& world) {
      if (world.rank() == 0) description = world.communicator().describe();
      EXPECT_EQ(world.topology().gpu_of_rank.back(), (rank_count - 1) % 4);
    });
    return description;
  };
  EXPECT_EQ(describe_world(1).substr(0, 7), "threads");
  EXPECT_EQ(describe_world(4).substr(0, 4), "nccl");
  EXPECT_EQ(describe_world(8).substr(0, 7), "threads");
}

}  // namespace
}  // namespace aliquot
