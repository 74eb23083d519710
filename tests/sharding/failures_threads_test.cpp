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

void barrier(World& world, Communicator& group, Lane lane, Label label) {
  const auto stream = world.device().make_stream(lane);
  group.barrier(*stream, label);
  stream->synchronize();
}

void barrier(World& world, Lane lane, Label label) { barrier(world, world.communicator(), lane, label); }

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

TEST(Failures, ARankThatThrowsReachesTheOthersInAGroup) {
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

TEST(Failures, ARankMissingInAGroupIsNamedAsInTheWorld) {
  const auto message = failure_of(4, [](World& world) {
    const auto group = world.communicator().split(world.rank() % 2, 0);
    if (world.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    if (world.rank() == 1) barrier(world, *group, Lane::kReduce, {});
  });
  says(message, {"rank 1 waited 0.3 s in barrier #1", "rank 3 never arrived"});
}

TEST(Failures, DifferentSizesAreNamed) {
  const auto message = failure_of(
      3,
      [](World& world) {
        world.communicator().allocate(world.rank() == 2 ? 64 << 20 : 4096, Category::kSlots, "the slot");
      },
      20);
  EXPECT_EQ(message, "ranks disagree about the size of the slot: 4096 bytes on rank 0, 67108864 on rank 2");
  const auto shared = failure_of(
      2,
      [](World& world) {
        world.communicator().allocate_shared(4096 * (1 + world.rank()), 4096, Category::kParameters, "the shards");
      },
      20);
  EXPECT_EQ(shared, "ranks disagree about the size of the shards: 4096 bytes on rank 0, 8192 on rank 1");
}

TEST(Failures, NoRoomOnOneRankIsNoRoomOnAll) {
  const auto message = failure_of(
      3,
      [](World& world) {
        if (world.rank() == 1) world.device().ledger().set_limit_bytes(world.device().ledger().held_bytes() + 4096);
        EXPECT_THROW(world.communicator().allocate(1 << 20, Category::kOptimizer, "the moments"), UnavailableError);
        barrier(world, Lane::kCompute, {});  // they still go together
      },
      20);
  EXPECT_EQ(message, "");
}

/// Two ranks gather, each as it is told; what they were told then.
std::string disagreement_of(const std::function<void(Communicator&, Stream&, int rank)>& gather) {
  return failure_of(
      2,
      [&](World& world) {
        const auto stream = world.device().make_stream(Lane::kGather);
        gather(world.communicator(), *stream, world.rank());
        stream->synchronize();
        world.communicator().gather_objects("end");
      },
      20);
}

TEST(Failures, RanksThatGatherDifferentUnitsAreTold) {
  const auto message = disagreement_of([](Communicator& ranks, Stream& stream, int rank) {
    const auto whole = ranks.allocate(8192, Category::kSlots, "whole");
    const auto own = ranks.allocate(4096, Category::kSlots, "own");
    ranks.all_gather(stream, {&whole, 0}, {&own, 0}, 4096, {rank == 0 ? "h.1" : "h.2", 3});
    stream.synchronize();
  });
  says(message, {"disagree", "all-gather of 4096 bytes (h.1, step 3)", "all-gather of 4096 bytes (h.2, step 3)"});
}

TEST(Failures, RanksThatGatherFromDifferentPlacesAreTold) {
  const auto message = disagreement_of([](Communicator& ranks, Stream& stream, int rank) {
    const auto whole = ranks.allocate(8192, Category::kSlots, "whole");
    const auto own = ranks.allocate(8192, Category::kSlots, "own");
    ranks.all_gather(stream, {&whole, 0}, {&own, rank * 4096}, 4096, {"h.1", 3});
    stream.synchronize();
  });
  says(message, {"disagree", "at another place of its buffer"});
}

TEST(Failures, RanksThatGatherInPlaceAndNotAreTold) {
  const auto message = disagreement_of([](Communicator& ranks, Stream& stream, int rank) {
    const auto whole = ranks.allocate(8192, Category::kSlots, "whole");
    const auto own = ranks.allocate(4096, Category::kSlots, "own");
    if (rank == 0) ranks.all_gather(stream, {&whole, 0}, {&own, 0}, 4096, {});
    if (rank == 1) ranks.all_gather_in_place(stream, {&whole, 0}, 4096, {});
    stream.synchronize();
  });
  says(message, {"disagree", "all-gather of 4096 bytes in place"});
}

TEST(Failures, RanksThatReduceDifferentlyAreTold) {
  const auto message = disagreement_of([](Communicator& ranks, Stream& stream, int rank) {
    double number = 1;
    ranks.all_reduce(stream, {&number, 1}, rank == 0 ? Reduction::kSum : Reduction::kMax, {});
    stream.synchronize();
  });
  says(message, {"disagree", "all-reduce of 1 numbers to the sum", "all-reduce of 1 numbers to the largest"});
}

TEST(Failures, ARankThatCannotMakeItsWorldTakesTheOthersWithIt) {
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
  says(message, {"mailboxes and signals"});
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 5);
}

}  // namespace
}  // namespace aliquot
