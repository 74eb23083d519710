// Whose gradients were not finite.
#include <gtest/gtest.h>
#include <limits>

#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// What a machine spoils it spoils again: from the second step on, the rank whose backward does it knows that it was it.
TEST(NotFinite, TheRankThatMadeItKnows) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int stage : {0, 1, 2, 3}) {
      Settings settings;
      settings.options = {.zero_stage = stage, .precision = {.gradients = dtype}, .accumulate = 2};
      World::threads(
          3,
          [&](World& world) {
            EngineWithModel trainee(world, settings);
            std::vector<bool> skipped, own;
            for (int step = 0; step < 7; ++step) {
              const bool spoils = world.rank() == 1 && step >= 1 && step <= 3;
              for (int m = 0; m < 2; ++m) {
                const float blow_up = spoils && m == 0 ? std::numeric_limits<float>::infinity() : 1.0f;
                train_micro_batch(trainee.engine, trainee.model, step, m, world.rank(), blow_up);
              }
              const StepReport report = trainee.engine.step();
              skipped.push_back(report.skipped);
              own.push_back(report.own_not_finite);
            }
            EXPECT_EQ(skipped, (std::vector<bool>{false, true, true, true, false, false, false}));
            const bool mine = world.rank() == 1;
            EXPECT_EQ(own, (std::vector<bool>{false, false, mine, mine, false, false, false})) << "stage " << stage;
          },
          kHosts);
    }
  }
}

}  // namespace
}  // namespace aliquot
