// Tests of the memory that ranks map for their arenas.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/choose/budget.h"
#include "sharding/comm/bootstrap_threads.h"
#include "sharding/comm/direct_communicator.h"
#include "tests/engine/blocks_model.h"
#include "tests/support/recording_node_memory.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Runs one of two pipeline stages, which have one rank each. Checks the size of the mapping that holds both arenas,
/// and the bytes that the ledger of this rank counts.
void check_arena_of_stage(const std::shared_ptr<ThreadsBootstrapStore>& store, int rank, int zero_stage) {
  std::vector<test::MadeMapping> made;
  DirectTransport transport = host_direct_transport(60);
  transport.name = "threads";
  transport.make_node_memory = [&made](Bootstrap& bootstrap) {
    return std::make_unique<test::RecordingNodeMemory>(make_heap_node_memory(bootstrap), made);
  };
  auto device = make_host_device(1);
  auto ranks = make_direct_communicator(*device, make_threads_bootstrap(store, rank), Topology::one_host(2), transport);
  World world(std::move(device), std::move(ranks));
  EngineWithBlocks setup(world, {.zero_stage = zero_stage, .pipeline = 2, .pipeline_cut = {1, 4}});
  const auto& plans = setup.engine.pipeline_plans();
  std::vector<int64_t> arena_bytes;
  for (const Plan& plan : plans) arena_bytes.push_back(plan.schedule.bytes(Space::kArena));
  EXPECT_GT(arena_bytes[1] - arena_bytes[0], 16384);

  const auto mapping = std::ranges::find(made, "arena", &test::MadeMapping::owner);
  ASSERT_NE(mapping, made.end());
  const auto pages = [](int64_t size_bytes) { return (size_bytes + 4095) / 4096; };
  EXPECT_EQ(mapping->size_bytes, (pages(arena_bytes[0]) + pages(arena_bytes[1])) * 4096);
  // The ranks hold nearly the same memory outside their plans.
  const auto held = world.communicator().gather_objects(std::to_string(world.device().ledger().held_bytes()));
  EXPECT_NEAR(static_cast<double>(std::stoll(held[1]) - std::stoll(held[0])),
              static_cast<double>(rank_bytes(plans[1]) - rank_bytes(plans[0])), 4096);
}

/// Each pipeline stage allocates an arena of the size that it needs, not of the size of the largest one.
TEST(Arena, EachStageAllocatesOnlyItsOwnArena) {
  for (const int zero_stage : {1, 3}) {
    const auto store = make_threads_bootstrap_store(2, 60);
    std::thread other(check_arena_of_stage, store, 1, zero_stage);
    check_arena_of_stage(store, 0, zero_stage);
    other.join();
  }
}

TEST(Arena, AFailedAllocationNamesTheLargestPartsOfThePlan) {
  World::threads(
      2,
      [](World& world) {
        world.device().ledger().set_limit_bytes(1000);
        try {
          EngineWithBlocks setup(world, {.zero_stage = 2});
          ADD_FAILURE() << "an arena of more than 1000 bytes was allocated";
        } catch (const UnavailableError& error) {
          EXPECT_NE(std::string(error.what()).find("; the largest parts of this rank's plan are "), std::string::npos)
              << error.what();
          EXPECT_NE(std::string(error.what()).find("optimizer "), std::string::npos) << error.what();
        }
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
