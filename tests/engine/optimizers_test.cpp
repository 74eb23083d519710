// Tests of custom rules and of 8-bit moments. A custom rule gives the same bits as a reference loop at every ZeRO
// stage and world size. Checkpoints name its optimizer states as the rule declares. 8-bit moments give the same bits at
// every ZeRO stage.
#include <gtest/gtest.h>

#include "optim/custom_rule.h"
#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// A rule for tests. Its update is proportional to its first state, a decaying sum of gradients. Its second state makes
/// the update smaller where gradients change sign.
struct Steadied {
  static constexpr int kStateCount = 2;
  static constexpr std::array<std::string_view, kStateCount> kStateNames = {"sum", "steadiness"};
  float lr, keep, decay;

  Steadied at(float lr_scale, float decay_scale) const { return {lr * lr_scale, keep, decay * lr_scale * decay_scale}; }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
    const float agrees = state[0] * gradient > 0.0f ? 1.0f : 0.0f;
    state[1] = keep * state[1] + (1.0f - keep) * agrees;
    state[0] = keep * state[0] + gradient;
    return weight * (1.0f - decay) - lr * (0.5f + state[1]) * state[0];
  }
};

Optimizer steadied() {
  return custom_optimizer<Steadied>("steadied", 0.01, [](double lr, int64_t step) {
    return Steadied{static_cast<float>(lr), step == 1 ? 0.0f : 0.9f, static_cast<float>(lr * 0.1)};
  });
}

TEST(CustomOptimizer, MatchesTheReferenceAtEveryStage) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      Settings settings;
      settings.options = {.zero_stage = stage, .clip = 0.5};
      settings.options.optimizer = steadied();
      const Outcome reference = train_without_engine(ranks, settings);
      EXPECT_NE(reference.losses.front(), reference.losses.back());
      World::threads(ranks,
                     [&](World& world) { EXPECT_EQ(train(world, settings), reference) << ranks << " " << stage; },
                     {.device = DeviceChoice::kHost, .timeout_seconds = 60});
    }
  }
}

TEST(EightBitMoments, GiveTheSameBitsAtEveryStage) {
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      Outcome first;
      for (const int stage : {0, 1, 2, 3}) {
        Settings settings;
        settings.options = {.zero_stage = stage, .accumulate_into = AccumulateInto::kFull, .clip = 0.5};
        settings.options.optimizer = AdamW8bit{.rounding = rounding};
        Outcome outcome;
        World::threads(ranks,
                       [&](World& world) {
                         const Outcome own = train(world, settings);
                         if (world.rank() == 0) outcome = own;
                       },
                       {.device = DeviceChoice::kHost, .timeout_seconds = 60});
        if (stage == 0) first = outcome;
        EXPECT_EQ(outcome, first) << ranks << " ranks, ZeRO stage " << stage;
      }
      EXPECT_NE(first.losses.front(), first.losses.back());
    }
  }
}

TEST(CustomOptimizer, SavesStatesUnderTheNamesOfTheRule) {
  World::threads(2,
                 [](World& world) {
                   SmallModel model;
                   EngineOptions options{.zero_stage = 3};
                   options.optimizer = steadied();
                   Engine engine(world, options);
                   declare(engine, model);
                   train_micro_batch(engine, model, 0, 0, world.rank());
                   EXPECT_FALSE(engine.step().skipped);
                   int sums = 0, steadiness = 0, parameters = 0;
                   for (const StateTensor& tensor : engine.state().tensors) {
                     sums += tensor.path.ends_with("/sum");
                     steadiness += tensor.path.ends_with("/steadiness");
                     parameters += tensor.path.starts_with("parameters/");
                   }
                   EXPECT_GT(parameters, 0);
                   EXPECT_EQ(sums, parameters);
                   EXPECT_EQ(steadiness, parameters);
                 },
                 {.device = DeviceChoice::kHost, .timeout_seconds = 60});
}

/// With zero gradients, AdamW only decays the weights. Each parameter has different scales of learning rate and decay.
TEST(ParameterOptions, ScaleLearningRateAndWeightDecay) {
  World::threads(
      2,
      [](World& world) {
        EngineOptions options{.zero_stage = 3, .clip = 0};
        options.optimizer = AdamW{.weight_decay = 0.5f};
        Engine engine(world, options);
        float *value[4] = {}, *gradient[4] = {};
        Unit& unit = engine.add_unit("all");
        unit.add("whole", {300}, &value[0], &gradient[0]);
        unit.add("half", {300}, &value[1], &gradient[1], {.decay_scale = 0.5f});
        unit.add("slow", {300}, &value[2], &gradient[2], {.lr_scale = 0.5f, .decay_scale = 3.0f});
        unit.add("none", {300}, &value[3], &gradient[3], {.decayed = false, .decay_scale = 3.0f});
        engine.materialize([](const ParameterSpec&, int64_t, std::span<float> values) {
          for (float& of : values) of = 1.0f;
        });
        engine.set_learning_rate(0.125);
        engine.micro_batch();
        { const auto live = unit.forward(); }
        { const auto live = unit.backward(); }
        EXPECT_FALSE(engine.step().skipped);
        const auto all = [&](const char* name) { return engine.read(name); };
        EXPECT_EQ(all("all.whole"), std::vector<float>(300, 1.0f - 0.0625f));
        EXPECT_EQ(all("all.half"), std::vector<float>(300, 1.0f - 0.03125f));
        EXPECT_EQ(all("all.slow"), std::vector<float>(300, 1.0f - 0.0625f * 1.5f));
        EXPECT_EQ(all("all.none"), std::vector<float>(300, 1.0f));
        Engine other(world, options);
        other.add_unit("wrong").add("w", {3}, &value[0], &gradient[0], {.decay_scale = -1.0f});
        EXPECT_THROW(other.plan(), UsageError);
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
