// What GPU ranks say and do when one of them fails, on simulated GPUs: thread-ranks, and NCCL.
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
  /// Runs `body` in a world and returns what World::threads threw.
  std::string failure_of(int rank_count, const std::function<void(World&)>& body, double timeout_seconds = 20) {
    const auto start = Clock::now();
    std::string message;
    try {
      World::threads(rank_count, body,
                     {.device = DeviceChoice::kCuda, .kind = GetParam(), .timeout_seconds = timeout_seconds});
    } catch (const std::exception& error) {
      message = error.what();
    }
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 5.0) << "somebody hung";
    return message;
  }
};

void expect_says(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << '"' << message << "\" does not say \"" << part << '"';
  }
}

void barrier(World& world, Label label) {
  const auto stream = world.device().make_stream(Lane::kReduce);
  world.communicator().barrier(*stream, label);
  stream->synchronize();
}

TEST_P(GpuFailures, ARankThatNeverArrivesIsNamedAtTheDeadline) {
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
  expect_says(message,
              {"waited 0.7 s in barrier #2 (h.7, step 118)", "rank 1 never arrived", "barrier #1 (h.3, step 117)"});
}

TEST_P(GpuFailures, ARankThatThrowsTakesTheOthersWithIt) {
  const auto message = failure_of(4, [](World& world) {
    if (world.rank() == 2) throw std::runtime_error("the disk is gone");
    barrier(world, {});
  });
  EXPECT_EQ(message, "the disk is gone");
}

TEST_P(GpuFailures, WorkInFlightIsLeftInPeace) {
  const auto message = failure_of(2, [](World& world) {
    auto& ranks = world.communicator();
    double number = 1;
    const auto stream = world.device().make_stream(Lane::kGather);
    const auto whole = ranks.allocate(2 << 20, Category::kSlots, "whole");
    ranks.all_gather_in_place(*stream, {&whole, 0}, 1 << 20, {"h.1"});
    ranks.all_reduce(*stream, {&number, 1}, Reduction::kSum, {});
    if (world.rank() == 1) throw std::runtime_error("thrown beside it");
    stream->synchronize();
  });
  EXPECT_EQ(message, "thrown beside it");
}

TEST_P(GpuFailures, DifferentOperationsAreFoundBeforeAByteIsUsed) {
  const auto message = failure_of(2, [](World& world) {
    auto& ranks = world.communicator();
    const auto stream = world.device().make_stream(Lane::kGather);
    const auto whole = ranks.allocate(8192, Category::kSlots, "whole");
    ranks.all_gather_in_place(*stream, {&whole, 0}, world.rank() == 0 ? 4096 : 2048, {"h.1"});
    stream->synchronize();
  });
  expect_says(message, {"disagree", "#1", "all-gather of 4096 bytes", "all-gather of 2048 bytes"});
}

TEST_P(GpuFailures, DifferentSizesAreRefused) {
  const auto message = failure_of(
      2, [](World& world) { world.communicator().allocate(4096 * (1 + world.rank()), Category::kSlots, "the slot"); });
  expect_says(message, {"disagree about the size of the slot: 4096 bytes on rank 0, 8192 on rank 1"});
}

TEST_P(GpuFailures, ARankThatThrowsReachesTheOthersInAGroup) {
  const auto message = failure_of(3, [](World& world) {
    const auto group = world.communicator().split(world.rank() == 2 ? 1 : 0, 0);
    const auto wide = world.communicator().split(0, 0);
    if (world.rank() == 1) throw std::runtime_error("the disk is gone");
    const auto stream = world.device().make_stream(Lane::kReduce);
    (world.rank() == 0 ? *group : *wide).barrier(*stream, {"h.1"});
    stream->synchronize();
  });
  EXPECT_EQ(message, "the disk is gone");
}

TEST_P(GpuFailures, NoRoomOnOneRankIsNoRoomOnAll) {
  const auto message = failure_of(2, [](World& world) {
    if (world.rank() == 1) world.device().ledger().set_limit_bytes(4096);
    world.communicator().allocate(1 << 20, Category::kOptimizer, "the moments");
  });
  expect_says(message, {"rank 1", "the moments"});
}

INSTANTIATE_TEST_SUITE_P(Worlds, GpuFailures, testing::Values(WorldChoice::kThreads, WorldChoice::kNccl),
                         [](const auto& test) { return test.param == WorldChoice::kNccl ? "Nccl" : "Threads"; });

/// Two ranks without a board, as between nodes, where nobody notices before the GPU waits: rank 0 issues `issued_count`
/// barriers, rank 1 only `met_count`. What rank 0 was told.
std::string hang_message(int issued_count, int met_count) {
  const auto store = make_threads_bootstrap_store(2, 20);
  std::string said;
  const auto rank = [&](int r) {
    auto device = make_cuda_device(r);
    auto ranks = make_nccl_communicator(*device, {.bootstrap = make_threads_bootstrap(store, r),
                                                  .topology = Topology::one_host(2),
                                                  .make_node_memory = {},
                                                  .options = {.timeout_seconds = 0.5}});
    ranks->gather_objects("made");
    const auto stream = device->make_stream(Lane::kGather);
    try {
      for (int i = 0; i < (r == 0 ? issued_count : met_count); ++i) ranks->barrier(*stream, {"h.2", i});
      if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      stream->synchronize();
      EXPECT_NE(r, 0) << "the barriers ended with one rank";
    } catch (const CommunicationError& error) {
      if (r == 0) said = error.what();
    }
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  return said;
}

TEST(NcclWatch, ACollectiveThatNeverEndsOnTheGpuIsAborted) {
  expect_says(hang_message(1, 0),
              {"rank 0 waited 0.5 s for the GPU to end barrier #1 (h.2, step 0)", "another rank never issued it"});
}

TEST(NcclWatch, NoneOfManyCollectivesGoesUnwatched) {
  expect_says(hang_message(100, 80),
              {"rank 0 waited 0.5 s for the GPU to end barrier #81 (h.2, step 80)", "another rank never issued it"});
}

TEST(NcclWatch, RanksThatShareAGpuAreRefused) {
  try {
    World::threads(5, [](World&) {}, {.device = DeviceChoice::kCuda, .kind = WorldChoice::kNccl});
    FAIL() << "five ranks on four GPUs";
  } catch (const UnavailableError& error) {
    expect_says(error.what(), {"ranks 0 and 4 share the GPU 0000:00:00.0,"});
  }
}

TEST(GpuWorlds, NcclIsTakenWhereEveryRankHasAGpu) {
  const auto moved_by = [](int rank_count) {
    std::string described;
    World::threads(rank_count, [&](World& world) {
      if (world.rank() == 0) described = world.communicator().describe();
      EXPECT_EQ(world.topology().gpu_of_rank.back(), (rank_count - 1) % 4);
    });
    return described;
  };
  EXPECT_EQ(moved_by(1).substr(0, 7), "threads");
  EXPECT_EQ(moved_by(4).substr(0, 4), "nccl");
  EXPECT_EQ(moved_by(8).substr(0, 7), "threads");
}

}  // namespace
}  // namespace aliquot
