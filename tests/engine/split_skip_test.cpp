// Tests of uses that some ranks of a tensor group skip.
#include <algorithm>
#include <array>
#include <gtest/gtest.h>

#include "tests/engine/small_model.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Units a and b with one parameter each. Each backward adds 1 to an element of its gradient.
struct TwoUnits {
  TwoUnits(World& world, const EngineOptions& options, const ParameterOptions& of_b)
      : engine(world, options), trains{true, of_b.trainable} {
    engine.add_unit("a").add("w", {8}, &value[0], &gradient[0]);
    engine.add_unit("b").add("w", {8}, &value[1], &gradient[1], of_b);
    engine.materialize([](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); });
  }

  /// Runs the passes of a step. `skips`: whether to skip the backward of b in the last micro-batch.
  void passes(bool skips) {
    const int micro_batches = engine.options().accumulate;
    for (int m = 0; m < micro_batches; ++m) {
      engine.micro_batch();
      for (Unit& unit : engine.units()) const Scope live = unit.forward();
      if (skips && m == micro_batches - 1) {
        engine.units()[1].skip();
      } else {
        backward(1);
      }
      backward(0);
    }
  }
  void backward(UnitId unit) {
    const Scope live = engine.units()[unit].backward();
    if (trains[unit]) gradient[unit][0] += 1;
  }

  Engine engine;
  std::array<bool, 2> trains;
  std::array<float*, 2> value{}, gradient{};
};

EngineOptions options_of(int zero_stage) { return {.zero_stage = zero_stage, .accumulate = 2, .tensor = 2}; }

/// Regression test: the copies of b.w differed after such a step.
TEST(SplitSkip, OfAFullGradientOnOneRankIsRefused) {
  for (const int stage : {0, 2, 3}) {
    World::threads(
        4,
        [stage](World& world) {
          TwoUnits model(world, options_of(stage), {});
          model.passes(false);
          EXPECT_FALSE(model.engine.step().skipped);
          model.passes(world.rank() % 2 == 1);  // the last rank of each tensor group skips
          const std::string first = world.rank() < 2 ? "0" : "2", second = world.rank() < 2 ? "1" : "3";
          EXPECT_EQ(test::usage_error_message([&] { (void)model.engine.step(); }),
                    "rank " + second + " skipped backward b of micro-batch 1, but rank " + first +
                        " did not: either all ranks of a tensor group or none must skip a backward that computes full "
                        "gradients");
          EXPECT_THROW((void)model.engine.state(), FaultError) << "the engine is unusable after the failure";
        },
        kHosts);
  }
}

TEST(SplitSkip, OnAllRanksOfATensorGroupIsAccepted) {
  for (const int stage : {0, 2, 3}) {
    World::threads(
        4,
        [stage](World& world) {
          TwoUnits model(world, options_of(stage), {});
          model.passes(world.rank() < 2);  // one of two tensor groups skips
          EXPECT_FALSE(model.engine.step().skipped);
          EXPECT_NO_THROW(model.engine.check_copies());
        },
        kHosts);
  }
}

TEST(SplitSkip, OfAPartialGradientOrASliceOnOneRankIsAccepted) {
  for (const int stage : {0, 2, 3}) {
    for (const ParameterOptions& of_b :
         {ParameterOptions{.partial_gradient = true}, ParameterOptions{.split = Split::rows()},
          ParameterOptions{.trainable = false}}) {
      World::threads(
          2,
          [&](World& world) {
            TwoUnits model(world, options_of(stage), of_b);
            model.passes(world.rank() == 1);
            EXPECT_FALSE(model.engine.step().skipped);
            EXPECT_NO_THROW(model.engine.check_copies());
          },
          kHosts);
    }
  }
}

/// The ranks that do not abandon a step run all of its uses.
TEST(SplitSkip, AnAbandonedStepIsNotCompared) {
  World::threads(
      2,
      [](World& world) {
        TwoUnits model(world, options_of(2), {});
        for (int step = 0; step < 2; ++step) {
          if (step == 0 && world.rank() == 1) {
            model.engine.abandon();
          } else {
            model.passes(false);
          }
          EXPECT_EQ(model.engine.step().skipped, step == 0);
        }
        EXPECT_NO_THROW(model.engine.check_copies());
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
