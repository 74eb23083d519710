// Tests of slices that are shorter than the largest slice. The rest of a shorter slice is padding.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>

#include "tests/engine/small_model.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// One unit with two split parameters. Both have the same shape.
struct Sliced {
  Sliced(World& world, const EngineOptions& options, const std::vector<int64_t>& shape, float initial = 1.0f)
      : engine(world, options),
        count(Slice(shape, Split::rows(), world.rank() % options.tensor, options.tensor).element_count()) {
    engine.add_unit("h")
        .add("v", shape, &value[0], &gradient[0], {.split = Split::rows()})
        .add("w", shape, &value[1], &gradient[1], {.split = Split::rows()});
    engine.materialize(
        [initial](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, initial); });
  }

  /// Runs all passes of a step. Backward sets all gradients to 1.
  void passes(const std::function<void(UseKind)>& in_scope = [](UseKind) {}) {
    while (const auto work = engine.next()) {
      engine.compute_stream().synchronize();
      for (int t = 0; t < 2 && work->kind == UseKind::kBackward; ++t) std::fill_n(gradient[t], count, 1.0f);
      in_scope(work->kind);
    }
  }

  Engine engine;
  int64_t count;  // number of elements of this rank's slices
  float *value[2] = {}, *gradient[2] = {};
};

EngineOptions options_of(int tensor, int zero_stage) {
  return {.zero_stage = zero_stage, .tensor = tensor, .gather = GatherMode::kCopy};
}

/// 10 rows: slices of 3, 3 and 4 elements. 2 rows: slices of 0, 1 and 1 elements.
const std::vector<std::vector<int64_t>> kShapes = {{10}, {2}};

/// Regression test: if a model wrote beyond a short slice on one rank, check_copies() reported a memory failure.
TEST(SplitSlices, CheckCopiesIgnoresElementsBeyondAShortSlice) {
  for (const auto& shape : kShapes) {
    for (const int stage : {0, 1, 2}) {
      World::threads(
          6,
          [&](World& world) {
            Sliced model(world, options_of(3, stage), shape);
            model.passes([&](UseKind kind) {
              if (kind == UseKind::kForward && world.rank() == 3) model.value[0][model.count] = 7;
            });
            EXPECT_FALSE(model.engine.step().skipped);
            EXPECT_NO_THROW(model.engine.check_copies()) << "ZeRO stage " << stage;
          },
          kHosts);
    }
  }
}

/// Regression test: with eps 0, the update of an element whose gradient and moments are 0 is 0 / 0.
TEST(SplitSlices, UpdatesLeaveElementsBeyondAShortSliceAtZero) {
  for (const auto& shape : kShapes) {
    for (const int stage : {0, 1, 2, 3}) {
      World::threads(
          3,
          [&](World& world) {
            EngineOptions options = options_of(3, stage);
            options.optimizer = AdamW{.lr = 0.1f, .eps = 0.0f};
            Sliced model(world, options, shape);
            for (int step = 0; step < 2; ++step) {
              model.passes([&](UseKind) {
                if (world.rank() == 2) return;  // this rank has the largest slice
                for (const float* values : model.value) EXPECT_EQ(values[model.count], 0.0f) << "ZeRO stage " << stage;
              });
              EXPECT_FALSE(model.engine.step().skipped);
            }
            for (const float value : model.engine.read("h.v")) EXPECT_LT(value, 0.9f);
          },
          kHosts);
    }
  }
}

/// Returns the message of a step in which each rank writes the element after its slice of h.v.
std::string message_of_write(World& world, int zero_stage, const std::vector<int64_t>& shape) {
  EngineOptions options = options_of(3, zero_stage);
  options.check = true;
  Sliced model(world, options, shape);
  return test::usage_error_message([&] {
    model.passes([&](UseKind kind) {
      if (kind == UseKind::kBackward) model.gradient[0][model.count] += 1;
    });
    (void)model.engine.step();
  });
}

TEST(SplitSlices, TheCheckingModeFindsWritesBeyondAShortSlice) {
  for (const auto& shape : kShapes) {
    for (const int stage : {0, 2, 3}) {
      World::threads(
          3,
          [&](World& world) {
            const int64_t count = Slice(shape, Split::rows(), world.rank(), 3).element_count();
            const std::string elements = count == 0
                                             ? "the slice of this rank has no elements"
                                             : fmt::format("the elements of this rank's slice are 0 to {}", count - 1);
            EXPECT_EQ(message_of_write(world, stage, shape),
                      fmt::format("backward h wrote beyond the gradient of h.v: at element {}, but {} (found by "
                                  "EngineOptions::check)",
                                  count, elements));
          },
          kHosts);
    }
  }
}

TEST(SplitSlices, InTheCheckingModeReadsBeyondAShortSliceReturnNaN) {
  for (const auto& shape : kShapes) {
    for (const int stage : {0, 2, 3}) {
      World::threads(
          3,
          [&](World& world) {
            EngineOptions options = options_of(3, stage);
            options.check = true;
            Sliced model(world, options, shape);
            for (int step = 0; step < 2; ++step) {
              model.passes([&](UseKind) {
                for (const float* values : model.value) EXPECT_TRUE(std::isnan(values[model.count]));
              });
              EXPECT_FALSE(model.engine.step().skipped);
            }
          },
          kHosts);
    }
  }
}

/// Trains 4 steps with moments in bf16, which are rounded with random numbers. Returns the elements of h.v.
std::vector<float> train_with_rounded_moments(int tensor, const std::vector<int64_t>& shape) {
  std::vector<float> trained;
  World::threads(
      tensor,
      [&](World& world) {
        EngineOptions options = options_of(tensor, 2);
        options.moments = DType::kBFloat16;
        Sliced model(world, options, shape);
        for (int step = 0; step < 4; ++step) {
          model.passes();
          (void)model.engine.step();
        }
        const std::vector<float> own = model.engine.read("h.v");
        if (world.rank() == 0) trained = own;
      },
      kHosts);
  return trained;
}

/// Regression test: the random numbers of all ranks of a tensor group were equal.
TEST(SplitSlices, AreRoundedWithDifferentRandomNumbers) {
  const std::vector<float> trained = train_with_rounded_moments(2, {2, 100});
  const auto second = trained.begin() + 100;
  EXPECT_FALSE(std::equal(trained.begin(), second, second));
}

TEST(SplitSlices, OfCompleteBlocksAreRoundedLikeTheFullParameter) {
  EXPECT_EQ(train_with_rounded_moments(2, {2, 512}), train_with_rounded_moments(1, {2, 512}));
}

}  // namespace
}  // namespace aliquot
