// Tests of activations in memory of the engine, and of recompute. Results with and without recompute are bitwise
// identical, and memory use equals the plan.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/engine/blocks_training.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Trains three steps and returns the results of rank 0. Expects that the measured peak memory of every rank equals the
/// planned peak.
Trained train(int ranks, const EngineOptions& options, const WorldOptions& world_options = kHosts) {
  Trained trained;
  World::threads(
      ranks,
      [&](World& world) {
        EngineWithBlocks setup(world, options);
        auto& [blocks, engine] = setup;
        for (int step = 0; step < 3; ++step) {
          for (int m = 0; m < options.accumulate; ++m) setup.micro_batch(step + 0.1 * m + 0.01 * world.rank());
          const StepReport report = engine.step();
          if (world.rank() == 0) trained.losses.push_back(blocks.loss), trained.norms.push_back(report.gradient_norm);
        }
        EXPECT_EQ(blocks.recomputed, 3 * options.accumulate * std::clamp(options.recompute, 0, kBlocks - 1));
        EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
        const auto full = engine.read("h.1.a");
        if (world.rank() == 0) trained.parameters = full;
      },
      world_options);
  return trained;
}

/// Without an engine, the model has the same loss bit for bit. Its gradient norm may differ slightly, because the
/// order of the sums differs.
TEST(Recompute, MatchesTheModelWithoutAnEngine) {
  Blocks blocks;
  std::vector<std::vector<float>> values, gradients;
  for (int i = 0; i < kBlocks; ++i) {
    const auto make = [&](const char* name, float*& value, float*& gradient) {
      std::vector<float> initial(kMiddle * kIn);
      for (std::size_t e = 0; e < initial.size(); ++e)
        initial[e] = blocks_value(fmt::format("h.{}.{}", i, name), static_cast<int64_t>(e));
      value = values.emplace_back(std::move(initial)).data();
      gradient = gradients.emplace_back(kMiddle * kIn, 0.0f).data();
    };
    make("a", blocks.a[i], blocks.d_a[i]);
    make("b", blocks.b[i], blocks.d_b[i]);
  }
  const PlainMemory memory(Blocks::spec());
  blocks.run_pass_without_engine(memory, 0.5);
  double squares = 0;
  for (const auto& gradient : gradients) {
    for (const float g : gradient) squares += static_cast<double>(g) * g;
  }
  for (const int recompute : {0, 2, 4}) {
    World::threads(
        1,
        [&](World& world) {
          EngineWithBlocks setup(world, {.recompute = recompute, .gather = GatherMode::kCopy});
          setup.micro_batch(0.5);
          EXPECT_NEAR(setup.engine.step().gradient_norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
          EXPECT_EQ(setup.blocks.loss, blocks.loss);
        },
        kHosts);
  }
}

/// Combines recompute with other options.
TEST(Recompute, DoesNotChangeResultsWithOtherOptions) {
  const EngineOptions all[] = {{.zero_stage = 3, .gather = GatherMode::kCopy, .update_in_backward = true, .clip = 0},
                               {.zero_stage = 2, .accumulate = 2, .reproducible = true},
                               {.zero_stage = 2, .replicas = 2, .accumulate = 2},
                               {.zero_stage = 3, .replicas = 2, .keep_gathered = 2, .gather = GatherMode::kCopy},
                               {.zero_stage = 3,
                                .offload_state = Offload::kHost,
                                .offload_parameters = Offload::kDisk,
                                .offload_parameters_to = "/tmp"}};
  for (EngineOptions options : all) {
    options.recompute = 0;
    const Trained without_recompute = train(4, options);
    for (const int recompute : {2, 4}) {
      options.recompute = recompute;
      EXPECT_TRUE(train(4, options) == without_recompute) << "ZeRO stage " << options.zero_stage << ", " << recompute;
    }
  }
}

/// train() also checks that the ledger equals the plan in every case.
TEST(Recompute, DoesNotChangeResults) {
  for (const int ranks : {1, 2, 3}) {
    for (const int accumulate : {1, 2}) {
      for (const int stage : {0, 1, 2, 3}) {
        EngineOptions options = {.zero_stage = stage, .accumulate = accumulate};
        const Trained without_recompute = train(ranks, options);
        ASSERT_TRUE(std::isfinite(without_recompute.norms.back()));
        for (const int recompute : {1, 3, 4, 100}) {
          for (const int prefetch : {0, 1, 3}) {
            for (const auto gather : {GatherMode::kAuto, GatherMode::kCopy}) {
              options.recompute = recompute;
              options.prefetch = prefetch;
              options.keep_gathered = prefetch / 2;
              options.gather = gather;
              EXPECT_TRUE(train(ranks, options) == without_recompute)
                  << ranks << " ranks, ZeRO stage " << stage << ", " << recompute;
              if (stage < 3) break;
            }
          }
        }
      }
    }
  }
}

TEST(Recompute, AdversarialSchedulingDoesNotChangeResults) {
  for (const int stage : {1, 3}) {
    EngineOptions options = {.zero_stage = stage, .accumulate = 2};
    if (stage == 3) options.gather = GatherMode::kCopy;
    const Trained without_recompute = train(2, options);
    options.recompute = 3;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      AdversarialScheduler adversary(
          seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
      EXPECT_TRUE(
          train(2, options, {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }}) ==
          without_recompute)
          << seed;
    }
  }
}

int64_t activation_peak(const EngineOptions& options) {
  int64_t peak = 0;
  World::threads(
      1,
      [&](World& world) {
        EngineWithBlocks setup(world, options);
        setup.micro_batch(0.5);
        EXPECT_FALSE(setup.engine.step().skipped);
        peak = world.device().ledger().peak()[static_cast<std::size_t>(Category::kActivations)];
      },
      kHosts);
  return peak;
}

/// The output of a use is needed until the backward of the next use. The last use is not recomputed, because its
/// backward directly follows its forward.
TEST(Recompute, PeakActivationsMatchTheFormula) {
  constexpr int64_t kAlways =
      kBlocks * kStreamBytes + kStreamBytes + kKeptBytes;  // outputs, activation gradients, scratch
  EXPECT_EQ(activation_peak({.recompute = 0}), kAlways + kBlocks * kKeptBytes);
  EXPECT_EQ(activation_peak({.recompute = 1}), kAlways + (kBlocks - 1) * kKeptBytes);
  EXPECT_EQ(activation_peak({.recompute = 3}), kAlways + (kBlocks - 3) * kKeptBytes);
  EXPECT_EQ(activation_peak({.recompute = 4}), kAlways + kKeptBytes);
}

TEST(Recompute, EvaluationLeavesNoActivations) {
  for (const int recompute : {0, 4}) {
    World::threads(
        2,
        [&](World& world) {
          EngineWithBlocks setup(world, {.recompute = recompute, .gather = GatherMode::kCopy});
          auto& [blocks, engine] = setup;
          for (int step = 0; step < 2; ++step) {
            double losses[2] = {};
            for (double& loss : losses) {
              for (int i = 0; i < kBlocks; ++i) {
                const Scope live = engine.units()[i].evaluate();
                EXPECT_FALSE(live.memory().recomputed);
                blocks.forward(engine, live.memory(), 0.3);
              }
              engine.compute_stream().synchronize();
              loss = blocks.loss;
            }
            EXPECT_EQ(losses[0], losses[1]);
            setup.micro_batch(0.3);
            engine.compute_stream().synchronize();
            EXPECT_EQ(blocks.loss, losses[0]) << "the same batch, on the same parameters";
            EXPECT_FALSE(engine.step().skipped);
          }
        },
        kHosts);
  }
}

/// The recompute function of the model throws on one rank. All ranks skip the step, and the next step is unaffected.
TEST(Recompute, ExceptionAbandonsTheStep) {
  World::threads(
      2,
      [&](World& world) {
        EngineWithBlocks setup(world, {.recompute = 2});
        auto& [blocks, engine] = setup;
        EngineWithBlocks plain(world, {});
        blocks.throws_at = world.rank() == 1 ? 1 : -1;
        bool thrown = false;
        try {
          setup.micro_batch(0.5);
        } catch (const std::runtime_error&) {
          thrown = true;
        }
        EXPECT_EQ(thrown, world.rank() == 1);
        EXPECT_EQ(engine.step().abandoned_by, 1);
        blocks.throws_at = -1;
        plain.micro_batch(0.7 + world.rank());
        const double norm = plain.engine.step().gradient_norm;
        setup.micro_batch(0.7 + world.rank());
        EXPECT_EQ(engine.step().gradient_norm, norm);
      },
      kHosts);
}

TEST(Recompute, SupportsSkippedUses) {
  std::vector<double> norms;
  for (const int recompute : {0, 3}) {
    World::threads(
        2,
        [&](World& world) {
          EngineWithBlocks setup(world, {.recompute = recompute, .gather = GatherMode::kCopy});
          auto& [blocks, engine] = setup;
          engine.micro_batch();
          for (int i = 0; i < kBlocks; ++i) {
            const Scope live = engine.units()[i].forward();
            blocks.forward(engine, live.memory(), 0.5);
          }
          for (int i = kBlocks - 1; i >= 0; --i) {
            if (i == 1 && world.rank() == 1) {  // rank 1 skips block 1, so its gradients are zero
              engine.units()[i].skip();
              continue;
            }
            const Scope live = engine.units()[i].backward();
            blocks.backward(engine, live.memory());
          }
          const double norm = engine.step().gradient_norm;
          if (world.rank() == 0) norms.push_back(norm);
        },
        kHosts);
  }
  EXPECT_EQ(norms[0], norms[1]);
}

/// Ranks may need different sizes, for example with different numbers of threads. All ranks get the largest size.
TEST(Recompute, UsesTheLargestSizesOfAllRanks) {
  World::threads(
      3,
      [&](World& world) {
        Engine engine(world, {.zero_stage = 1});
        float *value = nullptr, *gradient = nullptr;
        engine.add_unit("h").add("a", {4}, &value, &gradient);
        const int64_t own = 512 * (world.rank() + 1);
        engine.declare_activations({{{8, 2048 - own, own}}, 4 * own});
        EXPECT_EQ(engine.plan().model.activations, (ActivationSpec{{{8, 1536, 1536}}, 6144}));
        engine.materialize(
            [](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); });
      },
      kHosts);
}

TEST(Recompute, InvalidDeclarationsThrow) {
  World::threads(
      1,
      [](World& world) {
        const auto refusal = [&](const EngineOptions& options, const ActivationSpec& spec, const Recompute& recompute) {
          return test::usage_error_message([&] {
            float *value = nullptr, *gradient = nullptr;
            Engine engine(world, options);
            engine.add_unit("h").add("a", {4}, &value, &gradient);
            engine.declare_activations(spec, recompute);
            engine.plan();
          });
        };
        const auto nothing = [](const UseMemory&) {};
        EXPECT_NE(refusal({}, {{{8, 8, 0, true}}, 0}, {}).find("without a recompute function"), std::string::npos);
        EXPECT_NE(refusal({.recompute = 1}, {{{8, 8, 0, false}}, 0}, nothing).find("declares no recomputable use"),
                  std::string::npos);
        EXPECT_NE(refusal({.recompute = -2}, {{{8, 8, 0, true}}, 0}, nothing).find("0 or more"), std::string::npos);
        EXPECT_NE(refusal({}, {{{}, {}}, 0}, {}).find("declared for 2 uses"), std::string::npos);
        EXPECT_NE(refusal({}, {{{-8, 0, 0, false}}, 0}, {}).find("0 bytes or more"), std::string::npos);
        EXPECT_NE(refusal({}, {{}, 8}, {}).find("ActivationSpec::backward_bytes is 8"), std::string::npos);
        EXPECT_EQ(refusal({.recompute = 1}, {{{8, 8, 0, true}}, 0}, nothing), "no error was thrown");
      },
      kHosts);
}

}  // namespace
}  // namespace aliquot
