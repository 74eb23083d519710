// Tests cases in which other sharded trainers have failed: odd shapes, gradients on some ranks only, sums and means,
// and non-finite values. The gradients are scripted, so each result can be computed by hand.
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/formats/float16.h"
#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using testing_model::kHosts;

/// The gradient that a rank writes to an element of a unit in a micro-batch.
using Script = std::function<float(int unit, int64_t element, int micro_batch)>;

/// A model of units with one tensor each and scripted gradients. The initial value of element i is i modulo 7.
struct Scripted {
  Scripted(World& world, const EngineOptions& options, std::vector<std::vector<int64_t>> shapes, bool decayed = true,
           std::vector<std::vector<UnitId>> order = {})
      : value(shapes.size()), gradient(shapes.size()), uses(std::move(order)), engine(world, options) {
    for (std::size_t u = 0; u < shapes.size(); ++u) {
      const PointerSlot to = options.precision.gradients == DType::kBFloat16
                                 ? PointerSlot(reinterpret_cast<uint16_t**>(&gradient[u]))
                                 : PointerSlot(reinterpret_cast<float**>(&gradient[u]));
      engine.add_unit(fmt::format("u{}", u))
          .add("w", shapes[u], reinterpret_cast<float**>(&value[u]), to, {.decayed = decayed});
      int64_t count = 1;
      for (const int64_t extent : shapes[u]) count *= extent;
      counts.push_back(count);
    }
    if (uses.empty()) {
      for (UnitId u = 0; u < static_cast<UnitId>(shapes.size()); ++u) uses.push_back({u});
    } else {
      engine.declare_order(uses);
    }
    engine.materialize([](const ParameterSpec&, int64_t offset, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((offset + static_cast<int64_t>(i)) % 7);
    });
    narrow = options.precision.gradients == DType::kBFloat16;
  }

  StepReport step(const Script& script, int accumulate = 1) {
    for (int m = 0; m < accumulate; ++m) {
      engine.micro_batch();
      for (const auto& use : uses) auto live = engine.forward(std::span<const UnitId>(use));
      for (std::size_t u = uses.size(); u-- > 0;) {
        auto live = engine.backward(std::span<const UnitId>(uses[u]));
        for (const UnitId unit : uses[u]) add(unit, script, m);
      }
    }
    return engine.step();
  }
  void add(UnitId unit, const Script& script, int micro_batch) {
    for (int64_t i = 0; i < counts[unit]; ++i) {
      const float more = script(unit, i, micro_batch);
      if (narrow) {
        auto& at = static_cast<uint16_t*>(gradient[unit])[i];
        at = float_to_bf16(bf16_to_float(at) + more);
      } else {
        static_cast<float*>(gradient[unit])[i] += more;
      }
    }
  }
  std::vector<float> read(int unit) { return engine.read(fmt::format("u{}.w", unit)); }

  std::vector<void*> value, gradient;
  std::vector<int64_t> counts;
  std::vector<std::vector<UnitId>> uses;
  bool narrow = false;
  Engine engine;  // last, so that the engine is destroyed before the pointers that it sets
};

/// SGD without momentum, clipping or weight decay: value - rate * gradient.
EngineOptions plain_sgd(int stage, int accumulate = 1) {
  return {.zero_stage = stage, .accumulate = accumulate, .optimizer = Sgd{.lr = 0.5f, .momentum = 0}, .clip = 0};
}

void on_ranks(int count, const std::function<void(World&)>& body) { World::threads(count, body, kHosts); }

int64_t owned_elements(Engine& engine) {
  int64_t count = 0;
  for (const StateTensor& tensor : engine.state().tensors) {
    if (!tensor.path.starts_with("parameters/")) continue;
    for (const StatePiece& piece : tensor.pieces) count += piece.copy ? 0 : piece.count;
  }
  return count;
}

// Sharding ------------------------------------------------------------------------------------------------------------

TEST(Sharding, Rank0OwnsAThreeByFiveTensorOnTwoRanks) {
  on_ranks(2, [](World& world) {
    Scripted model(world, plain_sgd(3), {{3, 5}});
    EXPECT_EQ(owned_elements(model.engine), world.rank() == 0 ? 15 : 0);
    model.step([](int, int64_t i, int) { return static_cast<float>(i); });
    const auto values = model.read(0);
    EXPECT_EQ(values[0], 0.0f);
    EXPECT_EQ(values[14], 0.0f - 0.5f * 14.0f) << "the last element";
  });
}

TEST(Sharding, TwoParametersOnThreeRanksAreUpdated) {
  on_ranks(3, [](World& world) {
    Scripted model(world, plain_sgd(3), {{3}, {2}});
    model.step([](int unit, int64_t, int) { return 2.0f * static_cast<float>(unit + 1); });
    EXPECT_EQ(model.read(0), (std::vector<float>{-1, 0, 1}));
    EXPECT_EQ(model.read(1), (std::vector<float>{-2, -1}));
  });
}

TEST(Sharding, Rank0OwnsFifteenElementsOnEightRanks) {
  on_ranks(8, [](World& world) {
    Scripted model(world, plain_sgd(2), {{15}});
    EXPECT_EQ(owned_elements(model.engine), world.rank() == 0 ? 15 : 0);
    EXPECT_FLOAT_EQ(static_cast<float>(model.step([](int, int64_t, int) { return 3.0f; }).gradient_norm),
                    3.0f * std::sqrt(15.0f));
  });
}

TEST(Sharding, EveryElementHasOneOwner) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    int64_t total = 0;
    std::mutex mutex;
    on_ranks(ranks, [&](World& world) {
      Scripted model(world, plain_sgd(3), {{7, 15}, {16, 17}, {8100}, {}, {4099, 3}});
      const std::lock_guard lock(mutex);
      total += owned_elements(model.engine);
    });
    EXPECT_EQ(total, 7 * 15 + 16 * 17 + 8100 + 1 + 4099 * 3) << ranks << " ranks";
  }
}

TEST(Sharding, OddShapesGiveTheResultsOfOneRank) {
  const auto script = [](int unit, int64_t i, int) { return static_cast<float>((i * 5 + unit) % 9 - 4); };
  std::vector<std::vector<float>> alone;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const int stage : {1, 3}) {
      on_ranks(ranks, [&](World& world) {
        Scripted model(world, {.zero_stage = stage, .clip = 0}, {{7, 15}, {16, 17}});
        for (int step = 0; step < 10; ++step) model.step(script);
        const std::vector<std::vector<float>> full = {model.read(0), model.read(1)};
        if (world.rank() != 0) return;
        if (alone.empty()) alone = full;
        // Integer gradients add exactly, so the mean is the same for every world size.
        EXPECT_EQ(full, alone) << ranks << " ranks, ZeRO stage " << stage;
      });
    }
  }
}

TEST(Sharding, WeightDecayIsNotAppliedToParametersWithoutDecay) {
  const std::vector<std::vector<int64_t>> shapes(100, {3, 3});
  on_ranks(2, [&](World& world) {
    EngineOptions options = plain_sgd(3);
    options.optimizer = Sgd{.lr = 0.5f, .momentum = 0, .weight_decay = 100.0f};
    Scripted model(world, options, shapes, /*decayed=*/false);
    model.step([](int, int64_t, int) { return 2.0f; });
    for (const int unit : {0, 57, 99}) {
      const auto values = model.read(unit);
      for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(values[i], static_cast<float>(i % 7) - 1.0f) << unit;
    }
  });
}

/// The first and the last use share an embedding of 4 * ranks + 1 rows. Rows at shard borders must get the gradients of
/// both uses.
TEST(Sharding, EveryRowOfATiedEmbeddingGetsBothGradients) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {0, 2, 3}) {
      on_ranks(ranks, [&](World& world) {
        const int64_t rows = 4 * ranks + 1, width = 96;
        Scripted model(world, plain_sgd(stage), {{rows, width}, {5}}, true, {{0}, {1}, {0}});
        model.step([](int, int64_t, int) { return 1.0f; });
        const auto values = model.read(0);
        for (int64_t i = 0; i < rows * width; ++i)
          ASSERT_EQ(values[i], static_cast<float>(i % 7) - 0.5f * 2.0f) << "element " << i;
      });
    }
  }
}

// Gradients -----------------------------------------------------------------------------------------------------------

TEST(Gradients, MayDifferInEveryMicroBatchAndOnEveryRank) {
  for (const int stage : {0, 1, 2, 3}) {
    on_ranks(2, [&](World& world) {
      Scripted model(world, plain_sgd(stage, 2), {{300}, {300}, {300}});
      // Unit 0 has a gradient in micro-batch 0, unit 1 in micro-batch 1, and unit 2 in neither. Rank 1 has twice the
      // gradient of rank 0.
      const float each = world.rank() == 0 ? 4.0f : 8.0f;
      model.step([each](int unit, int64_t, int m) { return unit == m ? each : 0.0f; }, 2);
      const float mean = (4.0f + 8.0f) / (2 * 2);
      EXPECT_EQ(model.read(0)[299], static_cast<float>(299 % 7) - 0.5f * mean);
      EXPECT_EQ(model.read(1)[0], -0.5f * mean);
      EXPECT_EQ(model.read(2)[3], 3.0f) << "a unit without a gradient should not change";
    });
  }
}

TEST(Gradients, IntegersInBf16AddExactlyOnAllRanks) {
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](World& world) {
      EngineOptions options = plain_sgd(2);
      options.precision.gradients = DType::kBFloat16;
      Scripted model(world, options, {{1000}});
      const int rank = world.rank();
      model.step([rank](int, int64_t i, int) { return static_cast<float>((i + rank) % 16); });
      const auto values = model.read(0);
      for (int64_t i = 0; i < 1000; ++i) {
        float sum = 0;
        for (int r = 0; r < ranks; ++r) sum += static_cast<float>((i + r) % 16);
        ASSERT_EQ(values[i], static_cast<float>(i % 7) - 0.5f * (sum * (1.0f / static_cast<float>(ranks)))) << i;
      }
    });
  }
}

/// In fp32, 256 + 1 + 1 + 1 is 259. In bf16 the sum would stay 256.
TEST(Gradients, SentInBf16AreAddedInFp32) {
  on_ranks(4, [](World& world) {
    EngineOptions options = plain_sgd(2);
    options.precision.reduce = DType::kBFloat16;
    Scripted model(world, options, {{64}});
    const float own = world.rank() == 0 ? 256.0f : 1.0f;
    const StepReport report = model.step([own](int, int64_t, int) { return own; });
    EXPECT_FLOAT_EQ(static_cast<float>(report.gradient_norm), 259.0f / 4 * 8);
    EXPECT_EQ(model.read(0)[0], -0.5f * 259.0f / 4);
  });
}

TEST(Gradients, AreTheMeanOverRanksAndMicroBatches) {
  for (const int ranks : {1, 2, 4}) {
    for (const int accumulate : {1, 2, 4}) {
      for (const int stage : {0, 1, 2, 3}) {
        on_ranks(ranks, [&](World& world) {
          Scripted model(world, plain_sgd(stage, accumulate), {{64}});
          EXPECT_EQ(model.step([](int, int64_t, int) { return 3.0f; }, accumulate).gradient_norm, 24.0);
        });
      }
    }
  }
}

// Norms and scaling ---------------------------------------------------------------------------------------------------

std::vector<std::byte> bytes_of(Engine& engine) {
  std::vector<std::byte> bytes;
  for (const StateTensor& tensor : engine.state().tensors) {
    for (const StatePiece& piece : tensor.pieces) {
      const int64_t size = piece.count * element_bytes(tensor.dtype);
      if (tensor.access == nullptr) bytes.insert(bytes.end(), piece.bytes, piece.bytes + size);
    }
  }
  return bytes;
}

TEST(Norms, NonFiniteGradientSkipsTheStepOnAllRanks) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const int stage : {0, 1, 2, 3}) {
      on_ranks(3, [&](World& world) {
        Scripted model(world, {.zero_stage = stage}, {{700}, {300}});
        model.step([](int, int64_t, int) { return 1.0f; });
        const auto before = bytes_of(model.engine);
        const bool here = world.rank() == 2;
        const StepReport report =
            model.step([&](int unit, int64_t i, int) { return here && unit == 1 && i == 299 ? bad : 1.0f; });
        EXPECT_TRUE(report.skipped);
        EXPECT_EQ(report.first_not_finite, "u1.w");
        EXPECT_EQ(bytes_of(model.engine), before) << "ZeRO stage " << stage;
        EXPECT_FALSE(model.step([](int, int64_t, int) { return 1.0f; }).skipped);
      });
    }
  }
}

TEST(Norms, ClippingUsesTheSameFactorOnAllRanks) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](World& world) {
      EngineOptions options = plain_sgd(3);
      options.clip = 1.0;
      Scripted model(world, options, {{64}, {4, 48}});
      const StepReport report = model.step([](int, int64_t, int) { return 2.0f; });
      EXPECT_EQ(report.gradient_norm, 32.0);
      ASSERT_GT(report.gradient_norm, options.clip);
      const float clipped = 2.0f / (32.0f + 1e-6f);
      for (const int unit : {0, 1}) EXPECT_NEAR(model.read(unit)[0], -0.5f * clipped, 1e-8f);
    });
  }
}

TEST(Norms, ExcludeFrozenParameters) {
  on_ranks(2, [](World& world) {
    Scripted model(world, plain_sgd(3), {{64}, {64}});
    model.engine.set_trainable("u1", false);
    model.engine.micro_batch();
    for (Unit& unit : model.engine.units()) auto live = unit.forward();
    for (Unit& unit : reversed(model.engine.units())) {
      auto live = unit.backward();
      if (unit.index() == 0)
        model.add(
            0, [](int, int64_t, int) { return 5.0f; }, 0);
    }
    EXPECT_EQ(model.engine.step().gradient_norm, 40.0);
    EXPECT_EQ(model.read(1)[5], 5.0f);
  });
}

// Determinism ---------------------------------------------------------------------------------------------------------

TEST(Determinism, TwoRunsGiveTheSameResults) {
  for (const int stage : {0, 1, 2, 3}) {
    testing_model::Settings settings;
    settings.options = {.zero_stage = stage, .accumulate = 2, .moments = DType::kBFloat16};
    EXPECT_TRUE(testing_model::train_on(3, settings) == testing_model::train_on(3, settings)) << "ZeRO stage " << stage;
  }
}

}  // namespace
}  // namespace aliquot
