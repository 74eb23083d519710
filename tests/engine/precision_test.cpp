// Tests that in every precision, training gives the same bits as a reference loop that rounds at the same points.
// Training with split masters gives the same bits as training with fp32 masters.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"

namespace aliquot {
namespace {

using namespace testing_model;

struct Row {
  const char* name;
  Precision precision;
};

const Row kRows[] = {
    {"Bf16SplitMaster", {.compute = DType::kBFloat16}},
    {"Bf16FullMaster", {.compute = DType::kBFloat16, .master = MasterForm::kFp32}},
    {"Bf16SentInBf16", {.compute = DType::kBFloat16, .reduce = DType::kBFloat16}},
    {"Bf16Throughout", {.compute = DType::kBFloat16, .gradients = DType::kBFloat16}},
    {"Fp32SentInBf16", {.reduce = DType::kBFloat16}},
    {"Fp32GradientsBf16", {.gradients = DType::kBFloat16}},
    {"Fp16", {.compute = DType::kFloat16}},
    {"Fp16GradientsBf16", {.compute = DType::kFloat16, .gradients = DType::kBFloat16}},
};

Settings settings_of(const Precision& precision, int stage, int accumulate, AccumulateInto into) {
  Settings settings;
  settings.options = {.zero_stage = stage,
                      .precision = precision,
                      .accumulate = accumulate,
                      .accumulate_into = into,
                      .clip = 0.5,
                      .loss_scaling = {.initial_scale_power = 4, .loss_scale_window = 2}};
  return settings;
}

class EveryPrecision : public testing::TestWithParam<Row> {};

TEST_P(EveryPrecision, MatchesTheReferenceAtEveryStage) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int accumulate : {1, 2}) {
      for (const auto into : {AccumulateInto::kFull, AccumulateInto::kShard}) {
        Outcome reference;
        for (const int stage : {0, 1, 2, 3}) {
          Settings settings = settings_of(GetParam().precision, stage, accumulate, into);
          if (stage == 0) reference = train_without_engine(ranks, settings);
          EXPECT_TRUE(std::isfinite(reference.norms.back()));
          for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
            if (stage < 3 && gather == GatherMode::kView) continue;
            settings.options.gather = gather;
            World::threads(
                ranks,
                [&](World& world) {
                  EXPECT_TRUE(train(world, settings) == reference)
                      << ranks << " ranks, ZeRO stage " << stage << ", accumulate " << accumulate;
                },
                kHosts);
          }
        }
      }
    }
  }
}

TEST_P(EveryPrecision, UsesThePlannedMemory) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      const Settings settings = settings_of(GetParam().precision, stage, 2, AccumulateInto::kShard);
      World::threads(
          ranks, [&](World& world) { expect_planned_memory(world, settings); }, kHosts);
    }
  }
}

TEST_P(EveryPrecision, AdversarialSchedulingDoesNotChangeResults) {
  for (const int stage : {0, 2, 3}) {
    Settings settings = settings_of(GetParam().precision, stage, 2, AccumulateInto::kShard);
    settings.options.gather = GatherMode::kCopy;
    settings.steps = 2;
    const Outcome reference = train_without_engine(2, settings);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      AdversarialScheduler adversary(
          seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
      World::threads(2,
                     [&](World& world) { EXPECT_TRUE(train(world, settings) == reference) << seed << ", " << stage; },
                     {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, EveryPrecision, testing::ValuesIn(kRows),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Precision, SplitAndFullMastersGiveTheSameResults) {
  for (const int stage : {0, 1, 2, 3}) {
    const Precision split = {.compute = DType::kBFloat16},
                    full = {.compute = DType::kBFloat16, .master = MasterForm::kFp32};
    EXPECT_TRUE(train_on(2, settings_of(split, stage, 1, AccumulateInto::kAuto)) ==
                train_on(2, settings_of(full, stage, 1, AccumulateInto::kAuto)));
  }
}

/// Control for the tests above: the results of each precision differ from those of fp32 and of the previous precision.
TEST(Precision, EachPrecisionGivesDifferentResults) {
  const Outcome fp32 = train_on(2, settings_of({}, 2, 2, AccumulateInto::kShard));
  Outcome before = fp32;
  for (const Row& row : kRows) {
    if (std::string_view(row.name) == "Bf16FullMaster") continue;
    const Outcome outcome = train_on(2, settings_of(row.precision, 2, 2, AccumulateInto::kShard));
    EXPECT_FALSE(outcome == fp32) << row.name;
    EXPECT_FALSE(outcome == before) << row.name;
    EXPECT_NEAR(outcome.losses.back(), fp32.losses.back(), 0.05 * fp32.losses.back()) << row.name;
    before = outcome;
  }
}

/// Stochastic rounding of bf16 moments is deterministic. The loss is close to the loss with fp32 moments.
TEST(Precision, Bf16MomentsAreDeterministicAndConverge) {
  for (const int stage : {0, 1, 2, 3}) {
    Settings settings = settings_of({}, stage, 1, AccumulateInto::kAuto);
    settings.options.moments = DType::kBFloat16;
    const Outcome two = train_on(2, settings), again = train_on(2, settings);
    EXPECT_TRUE(two == again);
    settings.options.moments = DType::kFloat32;
    const Outcome fp32 = train_on(2, settings);
    EXPECT_FALSE(two == fp32);
    EXPECT_NEAR(two.losses.back(), fp32.losses.back(), 0.05 * fp32.losses.back());
  }
}

TEST(Precision, Bf16MomentsGiveTheSameResultsAtEveryStage) {
  Settings settings = settings_of({.compute = DType::kBFloat16}, 0, 1, AccumulateInto::kAuto);
  settings.options.moments = DType::kBFloat16;
  const Outcome stage0 = train_on(3, settings);
  for (const int stage : {1, 2, 3}) {
    settings.options.zero_stage = stage;
    EXPECT_TRUE(train_on(3, settings) == stage0) << stage;
  }
}

/// If gradients overflow on one rank, all ranks skip the step, nothing changes, and the report names a parameter.
TEST(Precision, Fp16SkipsAStepThatOverflows) {
  for (const int stage : {0, 3}) {
    Settings settings = settings_of({.compute = DType::kFloat16}, stage, 1, AccumulateInto::kAuto);
    settings.options.loss_scaling = {.initial_scale_power = 120, .hysteresis = 1};
    World::threads(
        2,
        [&](World& world) {
          SmallModel model(settings.options.precision);
          Engine engine(world, settings.options);
          declare(engine, model);
          const std::vector<float> before = engine.read("layer.0.weight");
          double scale = std::pow(2.0, 120);
          for (int step = 0; step < 3; ++step) {
            EXPECT_EQ(engine.loss_scale(), scale);
            train_micro_batch(engine, model, step, 0, world.rank(), world.rank() == 1 ? 1e6f : 1.0f);
            const StepReport report = engine.step();
            EXPECT_EQ(report.loss_scale, scale);
            ASSERT_TRUE(report.skipped);
            EXPECT_FALSE(report.first_not_finite.empty());
            scale /= 2;
          }
          EXPECT_EQ(engine.step_count(), 3);
          EXPECT_TRUE(engine.read("layer.0.weight") == before);
        },
        kHosts);
  }
}

TEST(Precision, InvalidCombinationsThrow) {
  World::threads(
      1,
      [](World& world) {
        const auto refuses = [&](const EngineOptions& options, std::string_view sentence) {
          try {
            Engine engine(world, options);
            SmallModel model;
            declare(engine, model);
            ADD_FAILURE() << "accepted: " << sentence;
          } catch (const UsageError& error) {
            EXPECT_NE(std::string_view(error.what()).find(sentence), std::string_view::npos) << error.what();
          }
        };
        refuses({.precision = {.compute = DType::kFloat64}},
                "precision.compute is float64: expected fp32, bf16 or fp16");
        refuses({.precision = {.gradients = DType::kBFloat16, .reduce = DType::kFloat32}}, "gains nothing");
        refuses({.precision = {.gradients = DType::kFloat16}}, "fp32 or bf16");
        refuses({.precision = {.compute = DType::kFloat16}, .update_in_backward = true, .clip = 0},
                "cannot skip a step");
        refuses({.update_in_backward = true}, "EngineOptions::clip is 1: set it to 0");
        refuses({.accumulate = 3, .reproducible = true},
                "EngineOptions::accumulate is 3: expected a power of two, for example 2 or 4");
        refuses({.accumulate = 2, .accumulate_into = AccumulateInto::kFull, .reproducible = true},
                "EngineOptions::accumulate_into is full");
      },
      kHosts);
}

/// With bf16 compute, a `float*` for the values of a parameter is rejected.
TEST(Precision, PointerTypesMustMatchTheComputeType) {
  World::threads(
      1,
      [](World& world) {
        float* value = nullptr;
        float* gradient = nullptr;
        Engine engine(world, {.precision = {.compute = DType::kBFloat16}});
        engine.add_unit("u").add("w", {3}, &value, &gradient);
        EXPECT_THROW(engine.materialize([](const auto&, int64_t, std::span<float>) {}), UsageError);
        uint16_t* narrow = nullptr;
        Engine other(world, {.precision = {.compute = DType::kBFloat16}});
        other.add_unit("u").add("w", {3}, &narrow, &gradient);
        other.materialize([](const auto&, int64_t, std::span<float> values) {
          for (float& v : values) v = 1.5f;
        });
        other.micro_batch();
        {
          auto live = other.units()[0].forward();
          EXPECT_EQ(narrow[2], 0x3FC0);
        }
        { auto live = other.units()[0].backward(); }
        EXPECT_FALSE(other.step().skipped);
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
