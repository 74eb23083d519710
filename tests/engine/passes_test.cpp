// Tests of reproducible sums, updates in the backward pass, evaluation and skipped uses.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"

namespace aliquot {
namespace {

using namespace testing_model;

// Reproducible --------------------------------------------------------------------------------------------------------

/// Trains on one global batch of 8 micro-batches, divided among 1 to 8 ranks. Micro-batch a of rank r has the number
/// a * ranks + r. The samples depend on this number alone, so every world trains on the same data.
Outcome train_batch_of_8(int ranks, Settings settings) {
  settings.options.accumulate = 8 / ranks;
  Outcome outcome;
  World::threads(
      ranks,
      [&](World& world) {
        EngineWithModel setup(world, settings);
        auto& [model, engine] = setup;
        for (int step = 0; step < 4; ++step) {
          for (int m = 0; m < settings.options.accumulate; ++m)
            train_micro_batch(engine, model, step, m * ranks + world.rank(), 0);
          const double norm = engine.step().gradient_norm;
          if (world.rank() == 0) outcome.norms.push_back(norm);
        }
        const std::vector<float> full = read_all(engine);
        if (world.rank() == 0) outcome.parameters = full;
      },
      kHosts);
  return outcome;
}

TEST(Reproducible, ResultsDoNotDependOnTheWorldSize) {
  for (const Precision& precision : {Precision{}, Precision{.compute = DType::kBFloat16, .gradients = DType::kBFloat16},
                                     Precision{.compute = DType::kBFloat16, .reduce = DType::kBFloat16}}) {
    Settings settings;
    settings.options = {.zero_stage = 3, .precision = precision, .reproducible = true, .clip = 0.5};
    const Outcome alone = train_batch_of_8(1, settings);
    for (const int ranks : {1, 2, 4, 8}) {
      for (const int stage : {0, 1, 2, 3}) {
        for (const int prefetch : {0, 2}) {
          settings.options.zero_stage = stage;
          settings.options.prefetch = prefetch;
          settings.options.keep_gathered = prefetch;
          EXPECT_TRUE(train_batch_of_8(ranks, settings) == alone)
              << precision.describe() << ": " << ranks << " ranks, ZeRO stage " << stage;
        }
      }
    }
  }
}

/// Control for the test above: without `reproducible`, the result depends on the world size.
TEST(Reproducible, WorldSizeChangesResultsIfDisabled) {
  Settings settings;
  settings.options = {.zero_stage = 2, .clip = 0.5};
  EXPECT_FALSE(train_batch_of_8(1, settings) == train_batch_of_8(4, settings));
}

TEST(Reproducible, MatchesTheReferenceUnderAdversarialScheduling) {
  for (const int stage : {0, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .accumulate = 4, .gather = GatherMode::kCopy, .reproducible = true};
    settings.steps = 2;
    const Outcome reference = train_without_engine(2, settings);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      AdversarialScheduler adversary(
          seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
      EXPECT_TRUE(
          train_on(2, settings, {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }}) ==
          reference)
          << seed;
    }
  }
}

TEST(Reproducible, HoldsOneShardPerTreeLevel) {
  World::threads(
      2,
      [](World& world) {
        Engine engine(world, {.zero_stage = 2, .accumulate = 8, .reproducible = true});
        SmallModel model;
        declare(engine, model);
        for (int m = 0; m < 8; ++m) train_micro_batch(engine, model, 0, m, world.rank());
        EXPECT_FALSE(engine.step().skipped);
        EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
        int levels = 0;
        for (const PlannedBuffer& buffer : engine.plan().schedule.buffers)
          levels = std::max(levels, tree_level_of(buffer.role) + 1);
        EXPECT_EQ(levels, 3);
      },
      kHosts);
}

// Update in backward --------------------------------------------------------------------------------------------------

TEST(UpdateInBackward, MatchesUpdatesAfterBackward) {
  for (const int ranks : {1, 2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int accumulate : {1, 3}) {
        for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
          Settings settings;
          settings.options = {.zero_stage = stage, .accumulate = accumulate, .clip = 0};
          if (stage == 3) settings.options.gather = gather;
          const Outcome at_end = train_without_engine(ranks, settings);
          settings.options.update_in_backward = true;
          EXPECT_TRUE(train_on(ranks, settings) == at_end) << ranks << " ranks, ZeRO stage " << stage;
        }
      }
    }
  }
}

TEST(UpdateInBackward, AdversarialSchedulingDoesNotChangeResults) {
  for (const int stage : {0, 1, 2, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .gather = GatherMode::kCopy, .update_in_backward = true, .clip = 0};
    settings.steps = 3;
    const Outcome reference = train_without_engine(3, settings);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      AdversarialScheduler adversary(
          seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
      EXPECT_TRUE(
          train_on(3, settings, {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }}) ==
          reference)
          << "ZeRO stage " << stage << ", seed " << seed;
    }
  }
}

/// With updates in backward, at most two units have a gradient shard at a time: one is updated while the next is
/// reduced.
TEST(UpdateInBackward, HoldsAtMostTwoGradientShards) {
  ModelSpec model;
  for (int u = 0; u < 20; ++u) {
    model.units.push_back(
        {fmt::format("u{}", u), {{.tensor = {fmt::format("u{}.w", u), {1 << 16}}}}, GradientMode::kAdd});
    model.uses.push_back({u});
  }
  const auto gradients = [&](bool in_backward) {
    const Plan p = plan(model, {.zero_stage = 2, .update_in_backward = in_backward}, Topology::one_host(4));
    return account(p.schedule).peak[static_cast<std::size_t>(Category::kGradients)];
  };
  EXPECT_EQ(gradients(false), 20 * (1 << 16));
  EXPECT_LE(gradients(true), 2 * (1 << 16));
}

// Evaluation ----------------------------------------------------------------------------------------------------------

/// Returns the expected result of evaluate(): the loss computed without an engine, from the full parameters.
double plain_loss(Engine& engine, int64_t batch, int rank) {
  SmallModel model;
  std::vector<std::vector<float>> parameters;
  for (const Shape& shape : shapes()) parameters.push_back(engine.read(shape.unit + "." + shape.name));
  for (int t = 0; t < kTensors; ++t) model.value.at[t] = parameters[t].data();
  const auto data = testing_model::samples(batch, 7, rank);
  for (int use = 0; use < kUses; ++use) model.forward(use, data);
  return model.loss();
}

TEST(Evaluation, DoesNotAffectTraining) {
  for (const int ranks : {1, 2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
        Settings settings;
        settings.options = {.zero_stage = stage, .prefetch = 2};
        if (stage == 3) settings.options.gather = gather;
        const Outcome reference = train_without_engine(ranks, settings);
        World::threads(
            ranks,
            [&](World& world) {
              EngineWithModel setup(world, settings);
              auto& [model, engine] = setup;
              for (int step = 0; step < settings.steps; ++step) {
                const double before = evaluate(engine, model, 5, world.rank());
                EXPECT_EQ(evaluate(engine, model, 5, world.rank()), before);
                train_micro_batch(engine, model, step, 0, world.rank());
                EXPECT_EQ(engine.step().gradient_norm, reference.norms[step]);
                EXPECT_NE(evaluate(engine, model, 5, world.rank()), before);
              }
              EXPECT_EQ(engine.read("scale.weight"),
                        std::vector<float>(reference.parameters.begin(), reference.parameters.begin() + kWidths[0]));
              EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
            },
            kHosts);
      }
    }
  }
}

TEST(Evaluation, MatchesTheReferenceUnderAdversarialScheduling) {
  Settings settings;
  settings.options = {.zero_stage = 3, .gather = GatherMode::kCopy};
  const Outcome reference = train_without_engine(2, settings);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    AdversarialScheduler adversary(
        seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
    World::threads(2,
                   [&](World& world) {
                     EngineWithModel setup(world, settings);
                     auto& [model, engine] = setup;
                     for (int step = 0; step < settings.steps; ++step) {
                       EXPECT_EQ(evaluate(engine, model, 5, world.rank()), plain_loss(engine, 5, world.rank())) << seed;
                       train_micro_batch(engine, model, step, 0, world.rank());
                       EXPECT_EQ(engine.step().gradient_norm, reference.norms[step]) << seed;
                       evaluate(engine, model, 5, world.rank());
                     }
                   },
                   {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }});
  }
}

TEST(Evaluation, ThrowsOutOfOrderAndInsideAStep) {
  World::threads(
      1,
      [](World& world) {
        SmallModel model;
        Engine engine(world, {});
        declare(engine, model);
        auto& units = engine.units();
        const auto error_of = [](const auto& call) -> std::string {
          try {
            call();
          } catch (const UsageError& error) {
            return error.what();
          }
          return "nothing was thrown";
        };
        EXPECT_EQ(error_of([&] { auto live = units[1].evaluate(); }),
                  "evaluate of layer.0 was opened, but the declared order expects evaluate of scale");
        { auto live = units[0].evaluate(); }
        const std::string unfinished = "an evaluation is not finished: evaluate of layer.0 comes next";
        EXPECT_EQ(error_of([&] { engine.micro_batch(); }), unfinished);
        EXPECT_EQ(error_of([&] { (void)engine.step(); }), unfinished);
        EXPECT_EQ(error_of([&] { auto live = units[2].evaluate(); }),
                  "evaluate of layer.1 was opened, but the declared order expects evaluate of layer.0");
        { auto live = units[1].evaluate(); }
        { auto live = units[2].evaluate(); }
        { auto live = engine.evaluate({&units[3], &units[0]}); }
        engine.micro_batch();
        EXPECT_THROW(static_cast<void>(units[0].evaluate()), UsageError) << "evaluation during a step";
        auto live = units[0].forward();
      },
      kHosts);
}

// Skipped uses --------------------------------------------------------------------------------------------------------

/// Runs one micro-batch. If `skips` is true, the rank skips layer 1 and computes nothing in the other uses, so that all
/// its gradients are zero.
void train_without_layer_1(Engine& engine, SmallModel& model, int step, bool skips, int rank) {
  auto& units = engine.units();
  const auto data = testing_model::samples(step, 0, rank);
  engine.micro_batch();
  for (int use = 0; use < kUses; ++use) {
    if (skips && use == 2) {
      units[2].skip();
      continue;
    }
    auto live = use < kLayers ? units[use].forward() : engine.forward({&units[kLayers], &units[0]});
    if (!skips) model.forward(use, data);
  }
  for (int use = kUses - 1; use >= 0; --use) {
    if (skips && use == 2) {
      units[2].skip();
      continue;
    }
    auto live = use < kLayers ? units[use].backward() : engine.backward({&units[kLayers], &units[0]});
    if (!skips) model.backward(use);
  }
}

TEST(Skip, LeavesZeroGradients) {
  for (const int stage : {0, 1, 2, 3}) {
    World::threads(
        3,
        [&](World& world) {
          SmallModel model;
          Engine engine(world, {.zero_stage = stage, .optimizer = Sgd{.momentum = 0}, .clip = 0});
          declare(engine, model);
          const auto before = engine.read("layer.1.weight");
          const auto other = engine.read("layer.0.weight");
          // If all ranks skip the layer, its weight does not change. If only rank 1 skips the layer, the gradients of
          // the other ranks change the weight.
          train_without_layer_1(engine, model, 0, true, world.rank());
          EXPECT_EQ(engine.step().gradient_norm, 0.0);
          EXPECT_TRUE(engine.read("layer.1.weight") == before);
          train_without_layer_1(engine, model, 1, world.rank() == 1, world.rank());
          EXPECT_GT(engine.step().gradient_norm, 0.0);
          EXPECT_FALSE(engine.read("layer.1.weight") == before);
          EXPECT_FALSE(engine.read("layer.0.weight") == other);
        },
        kHosts);
  }
}

TEST(Skip, ThrowsOutOfOrder) {
  World::threads(
      1,
      [](World& world) {
        SmallModel model;
        Engine engine(world, {});
        declare(engine, model);
        EXPECT_THROW(engine.units()[0].skip(), UsageError) << "before a micro-batch";
        engine.micro_batch();
        EXPECT_THROW(engine.units()[1].skip(), UsageError);
        engine.units()[0].skip();
        { auto live = engine.units()[1].forward(); }
      },
      kHosts);
}

/// If kernels assign gradients, the engine does not fill the gradients with zeros before backward. If the backward is
/// skipped, the engine must do so, or the update would use the old contents of the buffer.
TEST(Skip, ClearsAssignedGradients) {
  World::threads(
      2,
      [](World& world) {
        float *value = nullptr, *gradient = nullptr;
        Engine engine(world, {.zero_stage = 2, .optimizer = Sgd{.momentum = 0}, .clip = 0});
        Unit& unit = engine.add_unit("u").add("w", {300}, &value, &gradient).assigns_gradients();
        engine.materialize([](const auto&, int64_t, std::span<float> v) { std::ranges::fill(v, 1.0f); });
        for (const bool skips : {false, true, false}) {
          engine.micro_batch();
          { auto live = unit.forward(); }
          if (skips) {
            unit.skip();
          } else {
            auto live = unit.backward();
            std::fill_n(gradient, 300, 7.0f);
          }
          EXPECT_EQ(engine.step().gradient_norm > 0, !skips);
        }
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
