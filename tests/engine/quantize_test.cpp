// Tests that training with quantized weights and gradients matches a reference loop that rounds at the same points, for
// every number of nodes and ranks. Memory use equals the plan.
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
  int nodes, ranks_per_node;
};

class Quantized : public testing::TestWithParam<Row> {
 protected:
  int ranks() const { return GetParam().nodes * GetParam().ranks_per_node; }
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
  void expect_reference_bits(const Settings& settings, const WorldOptions& options = kHosts) const {
    const ScopedRanksPerNode nodes(GetParam().ranks_per_node);
    const Outcome reference = train_without_engine(ranks(), settings);
    World::threads(
        ranks(), [&](World& world) { EXPECT_EQ(train(world, settings), reference) << "rank " << world.rank(); },
        options);
  }
};

TEST_P(Quantized, WeightsMatchTheReference) {
  for (const int prefetch : {0, 1, 3}) {
    Settings quantized = settings(3, true, false);
    quantized.options.prefetch = prefetch;
    expect_reference_bits(quantized);
  }
  Settings quantized = settings(3, true, false);
  quantized.options.precision = {.compute = DType::kBFloat16};
  expect_reference_bits(quantized);
  quantized.options.update_in_backward = true;
  quantized.options.clip = 0;
  expect_reference_bits(quantized);
}

TEST_P(Quantized, GradientsMatchTheReference) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto into : {AccumulateInto::kFull, AccumulateInto::kShard}) {
      Settings quantized = settings(stage, false, true);
      quantized.options.accumulate_into = into;
      expect_reference_bits(quantized);
    }
  }
  Settings quantized = settings(2, false, true);
  quantized.options.precision = {.compute = DType::kBFloat16, .reduce = DType::kBFloat16};
  expect_reference_bits(quantized);
}

TEST_P(Quantized, WeightsAndGradientsMatchTheReference) { expect_reference_bits(settings(3, true, true)); }

TEST_P(Quantized, UsesThePlannedMemory) {
  const ScopedRanksPerNode nodes(GetParam().ranks_per_node);
  for (const bool weights : {false, true}) {
    World::threads(
        ranks(),
        [&](World& world) {
          EngineWithModel setup(world, settings(3, weights, true));
          for (int step = 0; step < 2; ++step) {
            for (int m = 0; m < 2; ++m) train_micro_batch(setup.engine, setup.model, step, m, world.rank());
            EXPECT_FALSE(setup.engine.step().skipped);
          }
          const Account planned = account(setup.engine.plan().schedule);
          EXPECT_EQ(world.device().ledger().peak(), planned.peak);
          EXPECT_EQ(world.device().ledger().in_use_peak_bytes(), planned.peak_bytes);
        },
        kHosts);
  }
}

TEST_P(Quantized, AdversarialSchedulingDoesNotChangeResults) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    AdversarialScheduler adversary(
        seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
    Settings quantized = settings(3, true, true);
    quantized.steps = 3;
    quantized.options.prefetch = static_cast<int>(seed % 3);
    expect_reference_bits(quantized,
                          {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }});
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, Quantized,
                         testing::Values(Row{1, 1}, Row{1, 3}, Row{2, 1}, Row{2, 2}, Row{3, 1}, Row{2, 3}, Row{4, 2}),
                         [](const auto& test) {
                           return fmt::format("{}x{}", test.param.nodes, test.param.ranks_per_node);
                         });

/// Each node is one replica. Gradients are quantized before they are sent to the rank that adds them, and the sum is
/// quantized before it is sent back.
TEST(QuantizedGradients, MatchTheReferenceWithOneReplicaPerNode) {
  for (const auto& [nodes, ranks_per_node] : {std::pair(2, 1), {2, 2}, {3, 1}, {4, 2}}) {
    const ScopedRanksPerNode emulated_nodes(ranks_per_node);
    for (const int stage : {1, 2, 3}) {
      for (const bool weights : {false, true}) {
        Settings settings;
        settings.options = {.zero_stage = stage,
                            .replicas = nodes,
                            .quantize_weights = weights && stage == 3,
                            .quantize_gradients = true,
                            .clip = 0.5};
        settings.nodes = nodes;
        const int ranks = nodes * ranks_per_node;
        const Outcome reference = train_without_engine(ranks, settings);
        World::threads(
            ranks,
            [&](World& world) { EXPECT_EQ(train(world, settings), reference) << nodes << "x" << ranks_per_node; },
            kHosts);
      }
    }
  }
}

/// The quantized weights do not depend on the assignment of ranks to nodes.
TEST(QuantizedWeights, DoNotDependOnTheTopology) {
  Settings settings;
  settings.options = {.quantize_weights = true};
  const auto on = [&](int ranks, int ranks_per_node) {
    const ScopedRanksPerNode nodes(ranks_per_node);
    return train_on(ranks, settings);
  };
  for (const int ranks : {2, 4, 6}) {
    const Outcome one_node = on(ranks, ranks);
    for (const int ranks_per_node : {1, ranks / 2})
      EXPECT_EQ(on(ranks, ranks_per_node), one_node) << ranks << " by " << ranks_per_node;
  }
}

TEST(QuantizedWeights, AreUsedByEvaluation) {
  Settings settings;
  settings.options = {.quantize_weights = true};
  const auto losses = [&](int ranks, int ranks_per_node) {
    const ScopedRanksPerNode nodes(ranks_per_node);
    std::vector<double> found;
    World::threads(
        ranks,
        [&](World& world) {
          EngineWithModel setup(world, settings);
          for (int step = 0; step < 3; ++step) {
            for (int again = 0; again < 2; ++again) {
              const double loss = evaluate(setup.engine, setup.model, step, 0);
              if (world.rank() == 0) found.push_back(loss);
            }
            train_micro_batch(setup.engine, setup.model, step, 0, 0);
            EXPECT_FALSE(setup.engine.step().skipped);
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

/// A non-finite gradient on one rank skips the step on all ranks and does not enter the error-feedback residual.
TEST(QuantizedGradients, NonFiniteValuesSkipTheStepOnAllRanks) {
  const ScopedRanksPerNode nodes(1);
  Settings settings;
  settings.options = {.zero_stage = 2, .quantize_gradients = true};
  World::threads(
      2,
      [&](World& world) {
        EngineWithModel setup(world, settings);
        const auto before = read_all(setup.engine);
        train_micro_batch(setup.engine, setup.model, 0, 0, world.rank(), world.rank() == 1 ? HUGE_VALF : 1.0f);
        const StepReport report = setup.engine.step();
        EXPECT_TRUE(report.skipped);
        EXPECT_FALSE(report.first_not_finite.empty());
        EXPECT_EQ(read_all(setup.engine), before);
        train_micro_batch(setup.engine, setup.model, 1, 0, world.rank());
        EXPECT_FALSE(setup.engine.step().skipped);
        EXPECT_NE(read_all(setup.engine), before);
      },
      kHosts);
}

/// In a skipped step, some gradients may be finite but huge. Their rounding errors must not enter the next step.
TEST(QuantizedGradients, SkippedStepResetsTheResidual) {
  for (const int replicas : {1, 2}) {
    const ScopedRanksPerNode nodes(1);
    Settings settings;
    settings.options = {.zero_stage = 2, .replicas = replicas, .quantize_gradients = true};
    const auto after = [&](bool skips_one) {
      std::vector<float> parameters;
      World::threads(
          2,
          [&](World& world) {
            EngineWithModel setup(world, settings);
            if (skips_one) {
              // In most blocks, the gradients of rank 1 are finite and the gradients of rank 0 are not.
              train_micro_batch(setup.engine, setup.model, 0, 0, world.rank(), world.rank() == 1 ? 1e30f : HUGE_VALF);
              EXPECT_TRUE(setup.engine.step().skipped);
            }
            train_micro_batch(setup.engine, setup.model, 1, 0, world.rank());
            EXPECT_FALSE(setup.engine.step().skipped);
            const auto all = read_all(setup.engine);
            if (world.rank() == 0) parameters = all;
          },
          kHosts);
      return parameters;
    };
    EXPECT_EQ(after(true), after(false)) << replicas;
  }
}

/// The residual includes the old loss scale as a factor, so a change of the loss scale must reset the residual.
TEST(QuantizedGradients, ChangedLossScaleResetsTheResidual) {
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

/// After adopt(), training continues as in a new engine, with a residual of zero.
TEST(QuantizedGradients, AdoptResetsTheResidual) {
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
            EngineWithModel setup(world, settings);
            const State fresh = setup.engine.state();
            setup.engine.set_learning_rate(0);
            for (int step = 0; step < steps_before; ++step) {
              train_micro_batch(setup.engine, setup.model, 5, 0, world.rank());
              EXPECT_FALSE(setup.engine.step().skipped);
            }
            setup.engine.adopt(fresh);
            setup.engine.set_learning_rate(settings.learning_rate);
            train_micro_batch(setup.engine, setup.model, 1, 0, world.rank());
            EXPECT_FALSE(setup.engine.step().skipped);
            const auto all = read_all(setup.engine);
            if (world.rank() == 0) parameters = all;
          },
          kHosts);
      return parameters;
    };
    EXPECT_EQ(after(2), after(0)) << replicas;
  }
}

/// With two replicas on four nodes, each replica spans two nodes.
TEST(QuantizedGradients, MatchTheReferenceIfReplicasSpanNodes) {
  Settings settings;
  settings.options = {.replicas = 2, .quantize_weights = true, .quantize_gradients = true};
  settings.nodes = 2;  // only the all-reduce over the two replicas quantizes gradients
  for (const int ranks_per_node : {1, 2}) {
    const ScopedRanksPerNode nodes(ranks_per_node);
    EXPECT_EQ(train_on(4 * ranks_per_node, settings), train_without_engine(4 * ranks_per_node, settings))
        << ranks_per_node;
  }
}

TEST(Quantized, SupportsFreezingAndEvaluation) {
  Settings settings;
  settings.options = {.quantize_weights = true};
  std::vector<double> one_node;
  for (const int ranks_per_node : {4, 2, 1}) {
    const ScopedRanksPerNode nodes(ranks_per_node);
    const auto seen = freeze_and_evaluate(4, settings);
    if (one_node.empty()) one_node = seen;
    EXPECT_EQ(seen, one_node) << ranks_per_node;
  }
}

TEST(Quantized, IncompatibleOptionsThrow) {
  const auto refused = [](const EngineOptions& options, int ranks, int ranks_per_node) -> std::string {
    const ScopedRanksPerNode nodes(ranks_per_node);
    try {
      Settings settings;
      settings.options = options;
      train_on(ranks, settings);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused({.zero_stage = 2, .quantize_weights = true}, 2, 1).find("zero_stage 3"), std::string::npos);
  EXPECT_NE(
      refused({.gather = GatherMode::kView, .quantize_weights = true}, 2, 2).find("EngineOptions::gather is view"),
      std::string::npos);
  EXPECT_NE(refused({.offload_parameters = Offload::kHost, .quantize_weights = true}, 2, 2)
                .find("EngineOptions::offload_parameters"),
            std::string::npos);
  EXPECT_NE(refused({.reproducible = true, .quantize_gradients = true}, 2, 1).find("EngineOptions::reproducible"),
            std::string::npos);
  EXPECT_NE(refused({.quantize_gradients = true}, 3, 2).find("3 ranks on 2 nodes"), std::string::npos);
}

}  // namespace
}  // namespace aliquot
