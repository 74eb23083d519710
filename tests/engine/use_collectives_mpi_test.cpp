// Tests of collectives of uses on four mpirun ranks. ALIQUOT_RANKS_PER_NODE sets the number of ranks per emulated node.
#include "tests/engine/tensor_blocks.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Thread ranks add in the same order, so results are bitwise identical.
TEST(UseCollectivesMpi, GiveTheResultsOfThreadRanks) {
  const WorldOptions hosts{.device = DeviceChoice::kHost, .timeout_seconds = 60};
  for (const int tensor : {2, 4}) {
    for (const int pipeline : {1, 2}) {
      if (tensor * pipeline > 4) continue;
      for (const int zero_stage : {0, 2, 3}) {
        const EngineOptions options{.zero_stage = zero_stage,
                                    .accumulate = 2,
                                    .tensor = tensor,
                                    .pipeline = pipeline,
                                    .pipeline_cut = pipeline == 1 ? std::vector<int>{} : std::vector{2, 2},
                                    .recompute = 2,
                                    .gather = GatherMode::kCopy};
        std::vector<TensorTrained> reference(4);
        World::threads(
            4, [&](World& world) { reference[world.rank()] = train_tensor_blocks(world, options); }, hosts);
        World world = World::from_environment(hosts);
        ASSERT_EQ(world.rank_count(), 4);
        EXPECT_TRUE(train_tensor_blocks(world, options) == reference[world.rank()])
            << "rank " << world.rank() << ", " << tensor << " ranks in a tensor group, " << pipeline
            << " pipeline stages, ZeRO stage " << zero_stage;
      }
    }
  }
}

}  // namespace
}  // namespace aliquot
