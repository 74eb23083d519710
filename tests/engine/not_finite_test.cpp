// Tests that StepReport::own_not_finite identifies the rank whose gradients are not finite.
#include <gtest/gtest.h>
#include <limits>

#include "tests/engine/tested_world.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// If a rank has non-finite gradients in several successive steps, own_not_finite is true from the second of them on.
TEST(NotFinite, IsReportedByTheRankWithNonFiniteGradients) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int stage : {0, 1, 2, 3}) {
      Settings settings;
      settings.options = {.zero_stage = stage, .precision = {.gradients = dtype}, .accumulate = 2};
      World::threads(
          3,
          [&](World& world) {
            EngineWithModel setup(world, settings);
            std::vector<bool> skipped, own;
            for (int step = 0; step < 7; ++step) {
              const bool is_faulty = world.rank() == 1 && step >= 1 && step <= 3;
              for (int m = 0; m < 2; ++m) {
                const float blow_up = is_faulty && m == 0 ? std::numeric_limits<float>::infinity() : 1.0f;
                train_micro_batch(setup.engine, setup.model, step, m, world.rank(), blow_up);
              }
              const StepReport report = setup.engine.step();
              skipped.push_back(report.skipped);
              own.push_back(report.own_not_finite);
            }
            EXPECT_EQ(skipped, (std::vector<bool>{false, true, true, true, false, false, false}));
            const bool own_fault = world.rank() == 1;
            EXPECT_EQ(own, (std::vector<bool>{false, false, own_fault, own_fault, false, false, false}))
                << "ZeRO stage " << stage;
          },
          kTestedWorld);
    }
  }
}

}  // namespace
}  // namespace aliquot
