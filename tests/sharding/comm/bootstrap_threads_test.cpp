// Tests of the bootstrap of thread ranks: rounds, groups, aborts between rounds, shared memory, and the agreement on
// GPUs.
#include "sharding/comm/bootstrap_threads.h"

#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/gather_from_threads.h"
#include "sharding/gpu_ranks.h"
#include "sharding/memory/node_memory.h"
#include "tests/sharding/memory/uneven_parts.h"

namespace aliquot {
namespace {

void sleep_milliseconds(int count) { std::this_thread::sleep_for(std::chrono::milliseconds(count)); }

/// Runs `body` on `rank_count` threads with one bootstrap each. Returns the error message of each thread, or "".
std::vector<std::string> run(int rank_count, double timeout_seconds, const std::function<void(Bootstrap&)>& body) {
  const auto store = make_threads_bootstrap_store(rank_count, timeout_seconds);
  std::vector<std::string> thrown(static_cast<std::size_t>(rank_count));
  const auto run_rank = [&](int rank) {
    const auto bootstrap = make_threads_bootstrap(store, rank);
    try {
      body(*bootstrap);
    } catch (const std::exception& error) {
      thrown[static_cast<std::size_t>(rank)] = error.what();
    }
  };
  std::vector<std::thread> ranks;
  for (int r = 0; r < rank_count; ++r) ranks.emplace_back(run_rank, r);
  for (auto& rank : ranks) rank.join();
  return thrown;
}

TEST(ThreadsBootstrap, GroupsReportGlobalRanks) {
  const auto thrown = run(6, 20, [](Bootstrap& world) {
    const auto half = world.split(world.rank() % 2, -world.rank());
    const auto pair = half->split(half->rank() / 2, 0);
    EXPECT_EQ(half->global_rank(half->rank()), world.rank());
    EXPECT_EQ(pair->global_rank(pair->rank()), world.rank());
    EXPECT_EQ(global_ranks_of(*half), (world.rank() % 2 == 0 ? std::vector{4, 2, 0} : std::vector{5, 3, 1}));
  });
  for (const auto& what : thrown) EXPECT_EQ(what, "");
}

TEST(ThreadsBootstrap, ColorsMayBeNegative) {
  run(4, 20, [](Bootstrap& world) { EXPECT_EQ(world.split(world.rank() % 2 == 0 ? -1 : -2, 0)->rank_count(), 2); });
}

TEST(ThreadsBootstrap, ErrorNamesTheGlobalRankOfAMissingRankInAGroup) {
  const auto thrown = run(4, 0.3, [](Bootstrap& world) {
    const auto group = world.split(world.rank() % 2, 0);
    if (world.rank() == 1) group->all_gather("here");
  });
  EXPECT_EQ(thrown[1], "rank 1 waited 0.3 s for the other ranks to set up together; rank 3 never arrived");
}

TEST(ThreadsBootstrap, TimeoutMessageStatesThePurpose) {
  const auto thrown = run(2, 0.3, [](Bootstrap& world) {
    const ScopedCollectivePurpose load("load");
    world.all_gather("here");
    {
      const ScopedCollectivePurpose save("save", 20);
      world.all_gather("here");
    }
    if (world.rank() == 1) world.all_gather("here");
  });
  EXPECT_EQ(thrown[1], "rank 1 waited 0.3 s for the other ranks to load together; rank 0 never arrived");
  const auto saving = run(2, 0.3, [](Bootstrap& world) {
    const ScopedCollectivePurpose save("save", 20);
    if (world.rank() == 0) world.all_gather("here");
  });
  EXPECT_EQ(saving[0], "rank 0 waited 0.3 s for the other ranks to save together (step 20); rank 1 never arrived");
  EXPECT_EQ(collective_purpose().what, "set up");
}

/// Without the check of the purpose, each rank would use data that another rank sent for a different call.
TEST(ThreadsBootstrap, RanksWithDifferentPurposesThrow) {
  const auto thrown = run(3, 600, [](Bootstrap& world) {
    const ScopedCollectivePurpose purpose(world.rank() == 1 ? "save" : "load");
    world.all_gather("here");
  });
  for (const std::string& what : thrown) {
    EXPECT_NE(what.find("rank 1"), std::string::npos) << what;
    EXPECT_NE(what.find(" to save"), std::string::npos) << what;
    EXPECT_NE(what.find(" to load"), std::string::npos) << what;
    EXPECT_NE(what.find(": all ranks must make the same calls in the same order"), std::string::npos) << what;
  }
}

TEST(ThreadsBootstrap, AbortOfTheWorldAbortsItsGroups) {
  const auto thrown = run(3, 20, [](Bootstrap& world) {
    const auto group = world.split(0, 0)->split(0, 0);
    if (world.rank() == 2) {
      sleep_milliseconds(50);
      return world.abort("rank 2 was asked to stop");
    }
    group->all_gather("here");
  });
  EXPECT_EQ(thrown[0], "rank 2 was asked to stop");
  EXPECT_EQ(thrown[1], "rank 2 was asked to stop");
}

TEST(ThreadsBootstrap, AbortOfAGroupDoesNotAbortTheWorld) {
  run(2, 20, [](Bootstrap& world) {
    const auto group = world.split(0, 0);
    group->abort("only the group");
    EXPECT_TRUE(group->aborted(nullptr));
    EXPECT_FALSE(world.aborted(nullptr));
    EXPECT_EQ(world.all_gather("still here").size(), 2u);
  });
}

TEST(ThreadsBootstrap, ObjectsAreFreedWithTheirLastReference) {
  std::vector<std::weak_ptr<int>> objects(3);
  run(3, 20, [&](Bootstrap& world) {
    auto own = std::make_shared<int>(world.rank());
    objects[static_cast<std::size_t>(world.rank())] = own;
    auto all = gather_from_threads(world, std::move(own));
    for (int r = 0; r < 3; ++r) EXPECT_EQ(*all[static_cast<std::size_t>(r)], r);
    world.all_gather("looked");
    all.clear();
    world.all_gather("let go");
    for (const auto& object : objects) EXPECT_TRUE(object.expired());
    world.all_gather("end");
  });
}

/// A bootstrap whose first round returns with a delay.
class SlowAfterFirstRound final : public Bootstrap {
 public:
  explicit SlowAfterFirstRound(Bootstrap& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int rank_count() const override { return inner_.rank_count(); }
  std::vector<std::string> all_gather(std::string_view own) override { return delay_first(inner_.all_gather(own)); }
  std::vector<std::shared_ptr<void>> all_gather_objects(std::shared_ptr<void> own) override {
    return delay_first(inner_.all_gather_objects(std::move(own)));
  }
  std::unique_ptr<Bootstrap> split(int color, int key) override { return inner_.split(color, key); }
  void abort(std::string_view why) noexcept override { inner_.abort(why); }
  bool aborted(std::string* why) const override { return inner_.aborted(why); }

 private:
  template <typename Round>
  Round delay_first(Round round) {
    if (round_count_++ == 0) sleep_milliseconds(200);
    return round;
  }
  Bootstrap& inner_;
  int round_count_ = 0;
};

TEST(HeapNodeMemory, PartsOfDifferentSizesFillTheMapping) {
  const auto thrown =
      run(7, 20, [](Bootstrap& world) { test::check_uneven_parts(make_heap_node_memory(world), world); });
  for (const auto& what : thrown) EXPECT_EQ(what, "");
}

// After an abort, memory that another rank has yet to copy must not be freed. Sanitizer builds detect a violation.
TEST(ThreadsBootstrap, AbortBetweenTwoRoundsFreesNoMemoryInUse) {
  run(3, 20, [](Bootstrap& world) {
    SlowAfterFirstRound slow(world);
    Bootstrap& own = world.rank() == 2 ? static_cast<Bootstrap&>(slow) : world;
    const auto memory = make_heap_node_memory(own);
    std::unique_ptr<NodeMapping> mapping;
    try {
      mapping = memory->map(1 << 16, "test");
    } catch (const CommunicationError&) {
      // The abort arrived before the memory was mapped.
    }
    if (world.rank() == 0) world.abort("told to stop");
    if (mapping != nullptr) mapping->writable[world.rank()] = std::byte{1};
  });
}

TEST(AgreeOnGpus, ThrowsOnAllRanksIfSomeHaveNoGpu) {
  for (const bool have : {false, true}) {
    run(3, 20, [have](Bootstrap& world) { EXPECT_EQ(agree_on_gpus(world, [have] { return have; }), have); });
  }
  const auto thrown = run(4, 20, [](Bootstrap& world) { agree_on_gpus(world, [&] { return world.rank() < 2; }); });
  for (const auto& what : thrown) {
    EXPECT_NE(what.find("there is a GPU for rank 0, 1 and none for rank 2, 3"), std::string::npos) << what;
  }
}

TEST(AgreeOnGpus, ErrorOnOneRankIsThrownOnAllRanks) {
  const auto thrown = run(2, 20, [](Bootstrap& world) {
    agree_on_gpus(world, [&]() -> bool {
      if (world.rank() == 1) throw UnavailableError("no GPU was found");
      return true;
    });
  });
  EXPECT_EQ(thrown, std::vector<std::string>(2, "rank 1: no GPU was found"));
}

}  // namespace
}  // namespace aliquot
