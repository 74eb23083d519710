// Tests of tensor groups on four mpirun ranks. ALIQUOT_RANKS_PER_NODE sets the number of ranks per emulated node.
#include "tests/engine/split_blocks.h"
#include "tests/engine/tensor_blocks.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Calls `train` with thread ranks and with ranks of mpirun, for several meshes. Thread ranks add in the same order, so
/// the results are bitwise identical.
template <typename Train>
void expect_results_of_thread_ranks(int uses, const Train& train) {
  const WorldOptions hosts{.device = DeviceChoice::kHost, .timeout_seconds = 60};
  for (const int tensor : {2, 4}) {
    for (const int pipeline : {1, 2}) {
      if (tensor * pipeline > 4) continue;
      for (const int zero_stage : {0, 2, 3}) {
        const EngineOptions options{
            .zero_stage = zero_stage,
            .accumulate = 2,
            .tensor = tensor,
            .pipeline = pipeline,
            .pipeline_cut = pipeline == 1 ? std::vector<int>{} : std::vector{uses / 2, uses / 2},
            .recompute = 2,
            .gather = GatherMode::kCopy};
        std::vector<TensorTrained> reference(4);
        World::threads(
            4, [&](World& world) { reference[world.rank()] = train(world, options); }, hosts);
        World world = World::from_environment(hosts);
        ASSERT_EQ(world.rank_count(), 4);
        EXPECT_TRUE(train(world, options) == reference[world.rank()])
            << "rank " << world.rank() << ", " << tensor << " ranks in a tensor group, " << pipeline
            << " pipeline stages, ZeRO stage " << zero_stage;
      }
    }
  }
}

TEST(TensorGroupsMpi, CollectivesGiveTheResultsOfThreadRanks) {
  expect_results_of_thread_ranks(TensorBlocks::kBlocks, [](World& world, const EngineOptions& options) {
    return train_tensor_blocks(world, options);
  });
}

TEST(TensorGroupsMpi, SplitParametersGiveTheResultsOfThreadRanks) {
  expect_results_of_thread_ranks(SplitBlocks::kBlocks, [](World& world, const EngineOptions& options) {
    return train_split_blocks(world, options);
  });
}

}  // namespace
}  // namespace aliquot
