// Tests of pointers that lead to the parameters of several units: one pointer for all units, and slices.
#include <csignal>
#include <cstdint>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/run/memory/guard_range.h"
#include "tests/engine/blocks_training.h"
#include "tests/engine/run/checked_pair.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Expects that a model with shared pointers or slices computes the results of a model with a pointer for each tensor.
void expect_same_results(int data_ranks, const EngineOptions& options, bool tied = false) {
  const Trained reference = train_by_passes(data_ranks, options, kHosts, tied);
  EXPECT_GT(reference.losses.back(), 0);
  for (const Pointers pointers : {Pointers::kShared, Pointers::kSlices})
    EXPECT_TRUE(train_by_passes(data_ranks, options, kHosts, tied, pointers) == reference)
        << describe(options) << ", pointers " << static_cast<int>(pointers);
}

TEST(Slices, DoNotChangeResults) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const GatherMode gather : {GatherMode::kCopy, GatherMode::kView}) {
      if (stage < 3 && gather == GatherMode::kView) continue;
      for (const bool check : {false, true}) {
        EngineOptions options{.zero_stage = stage, .accumulate = 2, .recompute = 2, .check = check};
        if (stage == 3) options.gather = gather;
        expect_same_results(2, options);
      }
    }
  }
}

TEST(Slices, DoNotChangeResultsOnPipelineStages) {
  for (const bool tied : {false, true}) {
    for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
      expect_same_results(1,
                          {.zero_stage = 3,
                           .accumulate = 3,
                           .pipeline = 2,
                           .pipeline_schedule = schedule,
                           .pipeline_cut = cut_of(2, tied)},
                          tied);
    }
  }
}

/// Units with the tensors w and bias. All units share the four base pointers.
struct Layers {
  static constexpr int kLayers = 4;
  static constexpr int64_t kRows = 512, kWidth = 256;  // three slices of w are longer than the guard range of a buffer

  explicit Layers(World& world, const EngineOptions& options = {}) : engine(world, options) {
    for (int l = 0; l < kLayers; ++l) {
      engine.add_unit(fmt::format("h.{}", l))
          .add("w", {kRows, kWidth}, slice(&w, l, kLayers), slice(&dw, l, kLayers))
          .add("bias", {kRows}, slice(&bias, l, kLayers), slice(&dbias, l, kLayers));
    }
    engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
      for (float& value : values) value = initial_value(parameter.tensor.name, offset++);
    });
  }
  float* w_of(int l) const { return w + l * kRows * kWidth; }
  float* bias_of(int l) const { return bias + l * kRows; }
  float* dbias_of(int l) const { return dbias + l * kRows; }
  void forward() {
    engine.micro_batch();
    for (Unit& unit : engine.units()) const Scope live = unit.forward();
  }

  float *w = nullptr, *bias = nullptr, *dw = nullptr, *dbias = nullptr;
  Engine engine;
};

TEST(Slices, LeadToTheParameterInEveryKindOfScope) {
  for (const EngineOptions& options : every_stage(false)) {
    World world = World::from_environment(kHosts);
    Layers model(world, options);
    const auto expect_values = [&](int l) {
      EXPECT_EQ(model.w_of(l)[70], initial_value(fmt::format("h.{}.w", l), 70)) << title(options);
      EXPECT_EQ(model.bias_of(l)[511], initial_value(fmt::format("h.{}.bias", l), 511)) << title(options);
    };
    for (Unit& unit : model.engine.units()) {
      const Scope live = unit.evaluate();
      expect_values(unit.index());
    }
    model.engine.micro_batch();
    for (Unit& unit : model.engine.units()) {
      const Scope live = unit.forward();
      expect_values(unit.index());
    }
    for (Unit& unit : reversed(model.engine.units())) {
      const Scope live = unit.backward();
      expect_values(unit.index());
      model.dbias_of(unit.index())[unit.index()] += 3;
    }
    EXPECT_EQ(model.engine.step().gradient_norm, 6) << "4 gradients of 3";
  }
}

/// With a tensor group, the distance of two slices is the number of elements that the rank has.
TEST(Slices, OfAParameterThatATensorGroupDivides) {
  constexpr int64_t kRows = 5, kWidth = 3, kLayers = 3;
  World::threads(
      2,
      [&](World& world) {
        float *value = nullptr, *gradient = nullptr;
        Engine engine(world, {.tensor = 2});
        for (int l = 0; l < kLayers; ++l)
          engine.add_unit(fmt::format("h.{}", l))
              .add("w", {kRows, kWidth}, slice(&value, l, kLayers), slice(&gradient, l, kLayers),
                   {.split = Split::rows()});
        engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
          for (float& each : values) each = initial_value(parameter.tensor.name, offset++);
        });
        const auto [first, end] = rank_range(kRows, world.rank(), 2);
        for (int l = 0; l < kLayers; ++l) {
          const Scope live = engine.units()[l].evaluate();
          const float* own = value + l * (end - first) * kWidth;
          for (int64_t i = 0; i < (end - first) * kWidth; ++i)
            EXPECT_EQ(own[i], initial_value(fmt::format("h.{}.w", l), first * kWidth + i));
        }
      },
      kHosts);
}

/// The base pointer of a slice has the alignment of its elements, so kernels may compute with it.
TEST(Slices, BasePointersAreAlignedAndNullAfterTheEngine) {
  World world = World::from_environment(kHosts);
  float *w = nullptr, *gradient = nullptr;
  {
    Engine engine(world, {});
    for (int l = 0; l < 3; ++l)
      engine.add_unit(fmt::format("h.{}", l)).add("w", {5}, slice(&w, l, 3), slice(&gradient, l, 3));
    engine.materialize(ones);
    const Scope live = engine.units()[0].evaluate();
    EXPECT_NE(w, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(w) % alignof(float), 0u);
  }
  EXPECT_EQ(w, nullptr);
}

// Refusals ------------------------------------------------------------------------------------------------------------

TEST(Slices, InvalidIndicesAndCounts) {
  float* base = nullptr;
  EXPECT_EQ(usage_error_message([&] { slice(&base, 3, 3); }),
            "slice() was called with the index 3: expected 0 to 2, because the count is 3");
  EXPECT_EQ(usage_error_message([&] { slice(&base, -1, 3); }),
            "slice() was called with the index -1: expected 0 to 2, because the count is 3");
  EXPECT_EQ(usage_error_message([&] { slice(&base, 0, 0); }),
            "slice() was called with the count 0: expected 1 to 1048576");
  EXPECT_EQ(usage_error_message([&] { slice(slice(&base, 0, 2), 0, 2); }),
            "slice() was called with a slot that is already a slice");
  EXPECT_TRUE(slice(static_cast<float**>(nullptr), 0, 2).empty());
}

/// Declares unit a with `first` and unit b with `second`, and returns the error of materialize().
struct TwoUnits {
  float *base = nullptr, *first = nullptr, *second = nullptr;

  std::string error(PointerSlot one, PointerSlot other, int64_t elements = 4, bool together = false) {
    World world = World::from_environment(kHosts);
    Engine engine(world, {});
    engine.add_unit("a").add("w", {4}, one, &first);
    engine.add_unit("b").add("w", {elements}, other, &second);
    if (together) engine.declare_order({{0, 1}});
    return usage_error_message([&] { engine.materialize(ones); });
  }
};

TEST(Slices, ThatDoNotFitTogetherAreRefused) {
  TwoUnits units;
  float** base = &units.base;
  EXPECT_EQ(units.error(slice(base, 0, 2), slice(base, 1, 2)), "no error was thrown");
  EXPECT_EQ(units.error(slice(base, 0, 2), slice(base, 0, 2)),
            "a.w and b.w are both slice 0 of the same pointer: expected a different index for each");
  EXPECT_EQ(units.error(slice(base, 0, 2), slice(base, 1, 3)),
            "a.w is one of 2 slices of a pointer, but b.w is one of 3 slices of the same pointer: expected the same "
            "number");
  EXPECT_EQ(units.error(slice(base, 0, 2), base),
            "a.w and b.w use the same pointer, but only one of them as a slice: use slice() for both, or different "
            "pointers");
  EXPECT_EQ(units.error(slice(base, 0, 2), slice(base, 1, 2), 5),
            "a.w and b.w are slices of the same pointer, but have 16 and 20 bytes: expected slices of one size");
}

/// A base pointer leads to one slice at a time, so two slices cannot be live together.
TEST(Slices, OfUnitsThatAreUsedTogetherAreRefused) {
  TwoUnits units;
  float** base = &units.base;
  EXPECT_EQ(units.error(slice(base, 0, 2), slice(base, 1, 2), 4, true),
            "a.w and b.w use the same pointer, but are used together: expected a use of one slice only, because a "
            "pointer leads to one slice at a time");
  World world = World::from_environment(kHosts);
  Engine engine(world, {});
  Unit& unit = engine.add_unit("u");
  unit.add("v", {4}, slice(base, 0, 2), &units.first);
  EXPECT_EQ(usage_error_message([&] { unit.add("w", {4}, slice(base, 1, 2), &units.second); }),
            "u.v and u.w use the same pointer: expected one parameter for all slices in a unit");
}

// Names in fault messages ---------------------------------------------------------------------------------------------

void touch(const float* at) { (void)*static_cast<const volatile float*>(at); }

void expect_fault(const EngineOptions& options, const std::function<void(Layers&)>& wrong,
                  const std::string& sentence) {
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, SIG_DFL);
        install_fault_names();
        World world = World::from_environment(kHosts);
        Layers model(world, options);
        wrong(model);
        _exit(0);
      },
      testing::KilledBySignal(SIGSEGV), sentence)
      << title(options);
}

TEST(SlicesDeathTest, FaultsOutsideOfScopesNameTheParameter) {
  for (const int l : {0, 1, 3}) {
    expect_fault(
        {}, [&](Layers& model) { touch(model.bias_of(l) + 511); },
        fmt::format("^aliquot: parameter h.{}.bias was accessed outside of an open scope", l));
    expect_fault(
        {},
        [&](Layers& model) {
          model.forward();
          touch(model.w_of(l));
        },
        fmt::format("^aliquot: parameter h.{}.w was accessed outside of an open scope", l));
    expect_fault(
        {}, [&](Layers& model) { touch(model.dbias_of(l) + 1); },
        fmt::format("^aliquot: the gradient of h.{}.bias was accessed outside of an open scope", l));
  }
  expect_fault(
      {}, [](Layers& model) { touch(model.w_of(4) + 2); },
      "^aliquot: parameter h.3.w was accessed outside of an open scope 8 bytes beyond its end");
}

/// Without the checking mode, the slice of a closed unit is at an address that another tensor may use.
TEST(SlicesDeathTest, TheCheckingModeFindsSlicesOfClosedUnits) {
  const std::string advice = ": check the index; of the slices of a pointer, only that of the open unit is accessible";
  for (const EngineOptions& options : every_stage(true)) {
    expect_fault(
        options,
        [](Layers& model) {
          const Scope first = model.engine.units()[0].evaluate();
          touch(model.w_of(3));
        },
        "^aliquot: parameter h.0.bias was accessed [0-9]+ bytes beyond its end" + advice);
    expect_fault(
        options,
        [](Layers& model) {
          model.forward();
          const Scope last = model.engine.units()[3].backward();
          touch(model.w_of(0));
        },
        "^aliquot: parameter h.3.w was accessed 1572864 bytes before its beginning" + advice);
  }
}

}  // namespace
}  // namespace aliquot
