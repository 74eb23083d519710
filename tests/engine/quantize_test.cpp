// Weights and gradients in eight bits: the bits of a plain loop that rounds where they travel, on every world; the memory that
// was planned; a loss that falls as without.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/scoped_ranks_per_node.h"

namespace aliquot {
namespace {

using namespace testing_model;
using test::ScopedRanksPerNode;

struct Row {
  int nodes, on_each;
};

class Quantized : public testing::TestWithParam<Row> {
 protected:
  int ranks() const { return GetParam().nodes * GetParam().on_each; }
  Settings settings(int stage, bool weights, bool gradients) const {
    Settings settings;
    settings.options = {.zero_stage = stage,
                        .accumulate = 2,
                        .quantize_weights = weights,
                        .quantize_gradients = gradients,
                        .clip = 0.5};
    settings.nodes = GetParam().nodes;
    return settings;
  }
  void expect_plain_bits(const Settings& settings, const WorldOptions& options = kHosts) const {
    const ScopedRanksPerNode nodes(GetParam().on_each);
    const Outcome plain = train_without_engine(ranks(), settings);
    World::threads(
        ranks(), [&](World& world) { EXPECT_EQ(train(world, settings), plain) << "rank " << world.rank(); }, options);
  }
};

TEST_P(Quantized, WeightsGiveTheBitsOfAPlainLoop) {
  for (const int prefetch : {0, 1, 3}) {
    Settings with = settings(3, true, false);
    with.options.prefetch = prefetch;
    expect_plain_bits(with);
  }
  Settings with = settings(3, true, false);
  with.options.precision = {.compute = DType::kBFloat16};
  expect_plain_bits(with);
  with.options.update_in_backward = true;
  with.options.clip = 0;
  expect_plain_bits(with);
}

TEST_P(Quantized, GradientsGiveTheBitsOfAPlainLoop) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto into : {AccumulateInto::kFull, AccumulateInto::kShard}) {
      Settings with = settings(stage, false, true);
      with.options.accumulate_into = into;
      expect_plain_bits(with);
    }
  }
  Settings with = settings(2, false, true);
  with.options.precision = {.compute = DType::kBFloat16, .reduce = DType::kBFloat16};
  expect_plain_bits(with);
}

TEST_P(Quantized, BothGiveTheBitsOfAPlainLoop) { expect_plain_bits(settings(3, true, true)); }

TEST_P(Quantized, UseTheMemoryThatWasPlanned) {
  const ScopedRanksPerNode nodes(GetParam().on_each);
  for (const bool weights : {false, true}) {
    World::threads(
        ranks(),
        [&](World& world) {
          EngineWithModel trainee(world, settings(3, weights, true));
          for (int step = 0; step < 2; ++step) {
            for (int m = 0; m < 2; ++m) train_micro_batch(trainee.engine, trainee.model, step, m, world.rank());
            EXPECT_FALSE(trainee.engine.step().skipped);
          }
          const Account planned = account(trainee.engine.plan().schedule);
          EXPECT_EQ(world.device().ledger().peak(), planned.peak);
          EXPECT_EQ(world.device().ledger().in_use_peak_bytes(), planned.peak_bytes);
        },
        kHosts);
  }
}

TEST_P(Quantized, AnAdversaryChangesNoBit) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    AdversarialScheduler adversary(
        seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
    Settings with = settings(3, true, true);
    with.steps = 3;
    with.options.prefetch = static_cast<int>(seed % 3);
    expect_plain_bits(with, {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }});
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, Quantized,
                         testing::Values(Row{1, 1}, Row{1, 3}, Row{2, 1}, Row{2, 2}, Row{3, 1}, Row{2, 3}, Row{4, 2}),
                         [](const auto& test) { return fmt::format("{}x{}", test.param.nodes, test.param.on_each); });

/// A replica a node: what they exchange is rounded, on its way to who adds it up, and on its way back.
TEST(QuantizedGradients, OfReplicasGiveTheBitsOfAPlainLoop) {
  for (const auto& [nodes, on_each] : {std::pair(2, 1), {2, 2}, {3, 1}, {4, 2}}) {
    const ScopedRanksPerNode said(on_each);
    for (const int stage : {1, 2, 3}) {
      for (const bool weights : {false, true}) {
        Settings settings;
        settings.options = {.zero_stage = stage,
                            .replicas = nodes,
                            .quantize_weights = weights && stage == 3,
                            .quantize_gradients = true,
                            .clip = 0.5};
        settings.nodes = nodes;
        const int ranks = nodes * on_each;
        const Outcome plain = train_without_engine(ranks, settings);
        World::threads(
            ranks, [&](World& world) { EXPECT_EQ(train(world, settings), plain) << nodes << "x" << on_each; }, kHosts);
      }
    }
  }
}

/// What the model computes with is one thing, however ranks lie on nodes.
TEST(QuantizedWeights, AreTheSameOnAllNodes) {
  Settings settings;
  settings.options = {.quantize_weights = true};
  const auto on = [&](int ranks, int on_each) {
    const ScopedRanksPerNode nodes(on_each);
    return train_on(ranks, settings);
  };
  for (const int ranks : {2, 4, 6}) {
    const Outcome one_node = on(ranks, ranks);
    for (const int on_each : {1, ranks / 2}) EXPECT_EQ(on(ranks, on_each), one_node) << ranks << " by " << on_each;
  }
}

TEST(QuantizedWeights, AreWhatAnEvaluationSees) {
  Settings settings;
  settings.options = {.quantize_weights = true};
  const auto losses = [&](int ranks, int on_each) {
    const ScopedRanksPerNode nodes(on_each);
    std::vector<double> found;
    World::threads(
        ranks,
        [&](World& world) {
          EngineWithModel trainee(world, settings);
          for (int step = 0; step < 3; ++step) {
            for (int again = 0; again < 2; ++again) {
              const double loss = evaluate(trainee.engine, trainee.model, step, 0);
              if (world.rank() == 0) found.push_back(loss);
            }
            train_micro_batch(trainee.engine, trainee.model, step, 0, 0);
            EXPECT_FALSE(trainee.engine.step().skipped);
          }
        },
        kHosts);
    return found;
  };
  const auto one = losses(1, 1);
  EXPECT_EQ(one[0], one[1]);
  EXPECT_NE(one[1], one[2]);
  EXPECT_EQ(losses(2, 1), one);
  EXPECT_EQ(losses(4, 2), one);
}

/// A gradient that is not finite is found, the step skipped on all ranks, and nothing of it carried on.
TEST(QuantizedGradients, ThatAreNotFiniteSkipTheStep) {
  const ScopedRanksPerNode nodes(1);
  Settings settings;
  settings.options = {.zero_stage = 2, .quantize_gradients = true};
  World::threads(
      2,
      [&](World& world) {
        EngineWithModel trainee(world, settings);
        const auto before = read_all(trainee.engine);
        train_micro_batch(trainee.engine, trainee.model, 0, 0, world.rank(), world.rank() == 1 ? HUGE_VALF : 1.0f);
        const StepReport report = trainee.engine.step();
        EXPECT_TRUE(report.skipped);
        EXPECT_FALSE(report.first_not_finite.empty());
        EXPECT_EQ(read_all(trainee.engine), before);
        train_micro_batch(trainee.engine, trainee.model, 1, 0, world.rank());
        EXPECT_FALSE(trainee.engine.step().skipped);
        EXPECT_NE(read_all(trainee.engine), before);
      },
      kHosts);
}

/// Gradients of a step that is skipped may be finite and enormous: what rounding left of them is not for the next one.
TEST(QuantizedGradients, OfASkippedStepAreForgotten) {
  for (const int replicas : {1, 2}) {
    const ScopedRanksPerNode nodes(1);
    Settings settings;
    settings.options = {.zero_stage = 2, .replicas = replicas, .quantize_gradients = true};
    const auto after = [&](bool skips_one) {
      std::vector<float> parameters;
      World::threads(
          2,
          [&](World& world) {
            EngineWithModel trainee(world, settings);
            if (skips_one) {
              // Rank 1's are finite in most blocks; rank 0's are not.
              train_micro_batch(trainee.engine, trainee.model, 0, 0, world.rank(),
                                world.rank() == 1 ? 1e30f : HUGE_VALF);
              EXPECT_TRUE(trainee.engine.step().skipped);
            }
            train_micro_batch(trainee.engine, trainee.model, 1, 0, world.rank());
            EXPECT_FALSE(trainee.engine.step().skipped);
            const auto all = read_all(trainee.engine);
            if (world.rank() == 0) parameters = all;
          },
          kHosts);
      return parameters;
    };
    EXPECT_EQ(after(true), after(false)) << replicas;
  }
}

/// Nor are those of another loss scale.
TEST(QuantizedGradients, AreForgottenWhenTheLossScaleChanges) {
  const ScopedRanksPerNode nodes(1);
  Settings settings;
  settings.options = {.zero_stage = 2,
                      .precision = {.compute = DType::kFloat16},
                      .quantize_gradients = true,
                      .loss_scaling = {.initial_scale_power = 12, .loss_scale_window = 2}};
  settings.steps = 7;
  settings.nodes = 2;
  EXPECT_EQ(train_on(2, settings), train_without_engine(2, settings));
}

/// What is adopted goes on as in an engine that has done nothing yet.
TEST(QuantizedGradients, AreForgottenWhenAStateIsAdopted) {
  for (const int replicas : {1, 2}) {
    const ScopedRanksPerNode nodes(1);
    Settings settings;
    settings.options = {
        .zero_stage = 2, .replicas = replicas, .quantize_gradients = true, .optimizer = Sgd{.momentum = 0}};
    const auto after = [&](int steps_before) {
      std::vector<float> parameters;
      World::threads(
          2,
          [&](World& world) {
            EngineWithModel trainee(world, settings);
            const State fresh = trainee.engine.state();
            trainee.engine.set_learning_rate(0);
            for (int step = 0; step < steps_before; ++step) {
              train_micro_batch(trainee.engine, trainee.model, 5, 0, world.rank());
              EXPECT_FALSE(trainee.engine.step().skipped);
            }
            trainee.engine.adopt(fresh);
            trainee.engine.set_learning_rate(settings.learning_rate);
            train_micro_batch(trainee.engine, trainee.model, 1, 0, world.rank());
            EXPECT_FALSE(trainee.engine.step().skipped);
            const auto all = read_all(trainee.engine);
            if (world.rank() == 0) parameters = all;
          },
          kHosts);
      return parameters;
    };
    EXPECT_EQ(after(2), after(0)) << replicas;
  }
}

/// Two replicas of four nodes: each goes over two.
TEST(QuantizedGradients, OfReplicasThatSpanNodes) {
  Settings settings;
  settings.options = {.replicas = 2, .quantize_weights = true, .quantize_gradients = true};
  settings.nodes = 2;  // what is rounded is what replicas exchange
  for (const int on_each : {1, 2}) {
    const ScopedRanksPerNode nodes(on_each);
    EXPECT_EQ(train_on(4 * on_each, settings), train_without_engine(4 * on_each, settings)) << on_each;
  }
}

TEST(Quantized, FreezingGoesTogetherWithIt) {
  Settings settings;
  settings.options = {.quantize_weights = true};
  std::vector<double> one_node;
  for (const int on_each : {4, 2, 1}) {
    const ScopedRanksPerNode nodes(on_each);
    const auto seen = freeze_and_evaluate(4, settings);
    if (one_node.empty()) one_node = seen;
    EXPECT_EQ(seen, one_node) << on_each;
  }
}

TEST(Quantized, WhatDoesNotComposeIsRefused) {
  const auto refused = [](const EngineOptions& options, int ranks, int on_each) -> std::string {
    const ScopedRanksPerNode nodes(on_each);
    try {
      Settings settings;
      settings.options = options;
      train_on(ranks, settings);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused({.zero_stage = 2, .quantize_weights = true}, 2, 1).find("stage 3"), std::string::npos);
  EXPECT_NE(refused({.gather = GatherMode::kView, .quantize_weights = true}, 2, 2).find("--gather view"),
            std::string::npos);
  EXPECT_NE(
      refused({.offload_parameters = Offload::kHost, .quantize_weights = true}, 2, 2).find("--offload-parameters"),
      std::string::npos);
  EXPECT_NE(refused({.reproducible = true, .quantize_gradients = true}, 2, 1).find("--reproducible"),
            std::string::npos);
  EXPECT_NE(refused({.quantize_gradients = true}, 3, 2).find("3 ranks on 2 nodes"), std::string::npos);
}

}  // namespace
}  // namespace aliquot
