// Tests that results do not change if a model writes to the padding after a tensor.
#include <cmath>
#include <gtest/gtest.h>

#include "tests/engine/run/checked_pair.h"
#include "tests/support/scoped_ranks_per_node.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Regression test: the norm included values in the padding.
TEST(Padding, DoesNotAffectTheNorm) {
  for (const int ranks : {1, 2, 4}) {
    for (EngineOptions options : every_stage(false)) {
      for (const bool assigns : {false, true}) {
        for (const int accumulate : {1, 2}) {
          options.accumulate = accumulate;
          if (assigns) options.accumulate_into = AccumulateInto::kShard;
          World::threads(
              ranks,
              [&](World& world) {
                Pair pair(world, options, assigns);
                for (int step = 0; step < 2; ++step) {
                  for (int m = 0; m < accumulate; ++m) {
                    pair.forward();
                    for (const UnitId unit : {1, 0}) {
                      const Scope live = pair.engine.units()[unit].backward();
                      for (int t = unit; t <= 2 * unit; ++t) {
                        for (int64_t i = 0; i < kCount; ++i)
                          pair.gradient[t][i] = assigns ? 1.0f : pair.gradient[t][i] + 1.0f;
                        pair.gradient[t][kCount] = 1e30f;
                        pair.gradient[t][255] = std::nanf("");
                      }
                    }
                  }
                  const StepReport report = pair.engine.step();
                  EXPECT_EQ(report.gradient_norm, std::sqrt(3.0 * kCount)) << title(options) << " on " << ranks;
                  EXPECT_FALSE(report.skipped);
                }
              },
              kHosts);
        }
      }
    }
  }
}

/// A quantized block has one scale. If it depended on a large value in the padding, the other values would become 0.
TEST(Padding, DoesNotAffectQuantization) {
  const test::ScopedRanksPerNode emulated_nodes(1);
  for (const int stage : {0, 2, 3}) {
    World::threads(
        2,
        [&](World& world) {
          Pair pair(world, {.zero_stage = stage, .quantize_gradients = true, .clip = 0});
          pair.forward();
          for (const UnitId unit : {1, 0}) {
            const Scope live = pair.engine.units()[unit].backward();
            for (int t = unit; t <= 2 * unit; ++t) {
              std::fill_n(pair.gradient[t], kCount, 1.0f);
              pair.gradient[t][kCount] = 1e10f;
            }
          }
          EXPECT_NEAR(pair.engine.step().gradient_norm, std::sqrt(3.0 * kCount), 1e-5) << "ZeRO stage " << stage;
        },
        kHosts);
  }
}

/// Regression test: if a model wrote to the padding on one rank, check_copies() reported a memory failure.
TEST(Padding, IsIgnoredByCheckCopies) {
  for (const int stage : {0, 1, 2}) {
    World::threads(
        2,
        [&](World& world) {
          Pair pair(world, {.zero_stage = stage});
          pair.engine.micro_batch();
          for (Unit& unit : pair.engine.units()) {
            const Scope live = unit.forward();
            if (world.rank() == 1) pair.value[unit.index()][kCount + 3] = 7;
          }
          for (const UnitId unit : {1, 0}) pair.backward(unit);
          EXPECT_FALSE(pair.engine.step().skipped);
          EXPECT_NO_THROW(pair.engine.check_copies()) << "ZeRO stage " << stage;
        },
        kHosts);
  }
}

}  // namespace
}  // namespace aliquot
