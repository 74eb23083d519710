// Tests that results with and without replicas are bitwise identical on the same number of ranks. Memory use equals the
// plan.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <map>

#include "kernels/system/error.h"
#include "tests/engine/small_model.h"
#include "tests/support/adversarial_device.h"

namespace aliquot {
namespace {

using namespace testing_model;

Settings with_replicas(Settings settings, int replicas) {
  settings.options.replicas = replicas;
  return settings;
}

struct Layout {
  int ranks, replicas;
};
constexpr Layout kLayouts[] = {{2, 2}, {4, 2}, {4, 4}, {8, 2}, {8, 4}, {6, 3}};

const Precision kPrecisions[] = {{},
                                 {.compute = DType::kBFloat16, .gradients = DType::kBFloat16},
                                 {.compute = DType::kBFloat16, .reduce = DType::kBFloat16},
                                 {.compute = DType::kFloat16}};

/// The ranks of a replica are contiguous, and each replica has a power of two of them. The sum over a replica is then a
/// subtree of the sum over all ranks, so results with and without replicas are bitwise identical.
TEST(Replicas, DoNotChangeResults) {
  for (const auto& [ranks, replicas] : kLayouts) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Precision& precision : kPrecisions) {
        for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
          if (gather == GatherMode::kView && stage < 3) continue;
          Settings settings;
          settings.options = {.zero_stage = stage, .precision = precision, .gather = gather, .clip = 0.5};
          const Outcome reference = train_on(ranks, settings);
          EXPECT_GT(reference.norms[0], settings.options.clip) << "clipping is not exercised";
          EXPECT_TRUE(train_on(ranks, with_replicas(settings, replicas)) == reference)
              << ranks << " ranks, " << replicas << " replicas, ZeRO stage " << stage << ", " << precision.describe();
        }
      }
    }
  }
}

/// Micro-batches accumulate in the full gradients, so the sum over ranks is the same as without replicas.
TEST(Replicas, AccumulationInFullGradientsDoesNotChangeResults) {
  for (const int stage : {0, 1, 2, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .accumulate = 3, .accumulate_into = AccumulateInto::kFull};
    EXPECT_TRUE(train_on(4, with_replicas(settings, 2)) == train_on(4, settings)) << "ZeRO stage " << stage;
  }
}

/// With accumulation into the shard, each replica first sums its own micro-batches. The order of this sum differs from
/// the order without replicas, but is the same at every ZeRO stage.
TEST(Replicas, AccumulationIntoTheShardGivesTheSameResultsAtEveryStage) {
  for (const Precision& precision : kPrecisions) {
    Settings settings;
    settings.options = {.zero_stage = 3,
                        .precision = precision,
                        .accumulate = 3,
                        .accumulate_into = AccumulateInto::kShard,
                        .prefetch = 2};
    const Outcome reference = train_on(4, settings), stage3 = train_on(4, with_replicas(settings, 2));
    for (std::size_t i = 0; i < reference.losses.size(); ++i)
      EXPECT_NEAR(stage3.losses[i], reference.losses[i], 2e-2 * reference.losses[i]);
    for (const int stage : {0, 1, 2}) {
      settings.options.zero_stage = stage;
      EXPECT_TRUE(train_on(4, with_replicas(settings, 2)) == stage3)
          << "ZeRO stage " << stage << ", " << precision.describe();
    }
  }
}

TEST(Replicas, SupportUpdatesInBackwardAndOffload) {
  for (const int stage : {0, 1, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .update_in_backward = true, .clip = 0};
    const Outcome reference = train_on(4, settings);
    settings.options.offload_state = Offload::kHost;
    if (stage == 3) settings.options.offload_parameters = Offload::kHost;
    EXPECT_TRUE(train_on(4, with_replicas(settings, 2)) == reference) << "ZeRO stage " << stage;
  }
}

/// With `reproducible`, the gradients of a micro-batch are summed over all ranks before they are added to those of
/// other micro-batches. The order of these sums is the same with and without replicas.
TEST(Replicas, ReproducibleResultsDoNotDependOnTheNumberOfReplicas) {
  for (const Precision& precision : kPrecisions) {
    for (const int accumulate : {1, 2, 8}) {
      Settings settings;
      settings.options = {.precision = precision, .accumulate = accumulate, .reproducible = true};
      const Outcome reference = train_on(4, settings);
      for (const int stage : {0, 1, 2, 3}) {
        settings.options.zero_stage = stage;
        for (const int replicas : {2, 4}) {
          EXPECT_TRUE(train_on(4, with_replicas(settings, replicas)) == reference)
              << replicas << " replicas, ZeRO stage " << stage << ", " << accumulate << " micro-batches, "
              << precision.describe();
        }
      }
    }
  }
}

TEST(Replicas, AdversarialSchedulingDoesNotChangeReproducibleResults) {
  for (const int stage : {0, 2, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .accumulate = 4, .gather = GatherMode::kCopy, .reproducible = true};
    settings.steps = 3;
    const Outcome reference = train_on(4, settings);
    for (uint64_t seed = 0; seed < 10; ++seed) {
      AdversarialScheduler adversary(
          seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
      const auto options =
          WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
      EXPECT_TRUE(train_on(4, with_replicas(settings, 2), options) == reference)
          << "seed " << seed << ", ZeRO stage " << stage;
    }
  }
}

/// With updates in backward, a step reuses buffers. A buffer may be reused only after the other replicas have read it.
TEST(Replicas, AdversarialSchedulingDoesNotChangeResults) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool in_backward : {false, true}) {
      Settings settings;
      settings.options = {.zero_stage = stage,
                          .accumulate = in_backward ? 1 : 2,
                          .accumulate_into = AccumulateInto::kFull,
                          .gather = GatherMode::kCopy,
                          .update_in_backward = in_backward,
                          .clip = in_backward ? 0.0 : 1.0};
      settings.steps = 3;
      const Outcome reference = train_on(4, settings);
      for (uint64_t seed = 0; seed < 20; ++seed) {
        AdversarialScheduler adversary(
            seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
        const auto options =
            WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
        EXPECT_TRUE(train_on(4, with_replicas(settings, 2), options) == reference)
            << "seed " << seed << ", ZeRO stage " << stage << (in_backward ? ", in backward" : "");
      }
    }
  }
}

/// Trains two units. The larger unit is the second in backward. The sum of its gradients reuses the memory from which
/// other replicas read the sum of the smaller unit. Returns the parameters after three steps.
std::vector<float> train_growing_units(const WorldOptions& world_options, int replicas) {
  constexpr int64_t kCounts[] = {64 * kBlockElements, 16 * kBlockElements};
  std::vector<float> parameters;
  World::threads(
      4,
      [&](World& world) {
        Engine engine(world, {.zero_stage = 2, .replicas = replicas, .update_in_backward = true, .clip = 0});
        float *value[2] = {}, *gradient[2] = {};
        for (int u = 0; u < 2; ++u)
          engine.add_unit("u" + std::to_string(u)).add("w", {kCounts[u]}, &value[u], &gradient[u]).assigns_gradients();
        engine.materialize(
            [](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 1); });
        for (int step = 0; step < 3; ++step) {
          const auto pass = engine.micro_batch();
          for (Unit& unit : engine.units()) auto live = unit.forward();
          for (Unit& unit : reversed(engine.units())) {
            auto live = unit.backward();
            const int u = unit.index();
            engine.compute_stream().run([value = value[u], gradient = gradient[u], count = kCounts[u], &world] {
              for (int64_t i = 0; i < count; ++i)
                gradient[i] = value[i] * static_cast<float>(i % 13 - 6) + static_cast<float>(world.rank());
            });
          }
          EXPECT_FALSE(engine.step().skipped);
        }
        for (const char* name : {"u0.w", "u1.w"}) {
          const auto full = engine.read(name);
          if (world.rank() == 0) parameters.insert(parameters.end(), full.begin(), full.end());
        }
      },
      world_options);
  return parameters;
}

TEST(Replicas, BufferIsReusedOnlyAfterOtherReplicasHaveReadIt) {
  const std::vector<float> reference = train_growing_units(kHosts, 1);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    AdversarialScheduler adversary(seed, AdversarialScheduler::Compute::kQueued);
    const auto options =
        WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
    EXPECT_TRUE(train_growing_units(options, 2) == reference) << "seed " << seed;
  }
}

TEST(Replicas, UseThePlannedMemory) {
  for (const int stage : {1, 2, 3}) {
    for (const int accumulate : {1, 2}) {
      Settings settings;
      settings.options = {.zero_stage = stage, .replicas = 2, .accumulate = accumulate};
      World::threads(
          6,
          [&](World& world) {
            EngineWithModel setup(world, settings);
            for (int step = 0; step < 2; ++step) {
              for (int m = 0; m < accumulate; ++m) train_micro_batch(setup.engine, setup.model, step, m, world.rank());
              EXPECT_FALSE(setup.engine.step().skipped);
            }
            const Account planned = account(setup.engine.plan().schedule);
            EXPECT_EQ(world.device().ledger().peak(), planned.peak) << "ZeRO stage " << stage;
            EXPECT_EQ(world.device().ledger().in_use_peak_bytes(), planned.peak_bytes) << "ZeRO stage " << stage;
          },
          kHosts);
    }
  }
}

/// Exactly one rank in the world saves each element.
TEST(Replicas, OnlyOneReplicaIsSaved) {
  World::threads(
      4,
      [](World& world) {
        Settings settings;
        settings.options = {.zero_stage = 3, .replicas = 2};
        EngineWithModel setup(world, settings);
        train_micro_batch(setup.engine, setup.model, 0, 0, world.rank());
        EXPECT_FALSE(setup.engine.step().skipped);
        const State state = setup.engine.state();
        int64_t saved = 0, elements = 0;
        for (const StateTensor& tensor : state.tensors) {
          elements += tensor.element_count();
          for (const StatePiece& piece : tensor.pieces) saved += piece.copy ? 0 : piece.count;
        }
        double all = static_cast<double>(saved);
        world.sum({&all, 1});
        EXPECT_EQ(static_cast<int64_t>(all), elements);
        EXPECT_EQ(saved > 0, world.rank() < 2);
      },
      kHosts);
}

/// A non-finite gradient or abandon() on one rank skips the step on every rank of every replica.
TEST(Replicas, AllSkipAFailedStep) {
  for (const bool abandons : {false, true}) {
    World::threads(
        4,
        [&](World& world) {
          Settings settings;
          settings.options = {.zero_stage = 3, .replicas = 2};
          EngineWithModel setup(world, settings);
          const bool bad = world.rank() == 3;
          if (bad && abandons) {
            setup.engine.abandon();
          } else {
            train_micro_batch(setup.engine, setup.model, 0, 0, world.rank(),
                              bad ? std::numeric_limits<float>::infinity() : 1.0f);
          }
          const StepReport report = setup.engine.step();
          EXPECT_TRUE(report.skipped);
          EXPECT_EQ(report.abandoned_by, abandons ? 3 : -1);
          EXPECT_EQ(report.first_not_finite.empty(), abandons);
          train_micro_batch(setup.engine, setup.model, 1, 0, world.rank());
          EXPECT_FALSE(setup.engine.step().skipped) << "the next step is unaffected";
        },
        kHosts);
  }
}

TEST(Replicas, SupportEvaluationAndFreezing) {
  Settings settings;
  settings.options = {.zero_stage = 3};
  EXPECT_EQ(freeze_and_evaluate(4, with_replicas(settings, 2)), freeze_and_evaluate(4, settings));
}

TEST(Replicas, InvalidConfigurationsThrow) {
  const auto refused = [](const Policy& policy, const Topology& topology) -> std::string {
    ModelSpec model;
    model.units = {{"u", {{.tensor = {"u.w", {1000}}}}, GradientMode::kAdd}};
    model.uses = {{0}};
    try {
      plan(model, policy, topology);
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  const Topology four = Topology::one_host(4);
  EXPECT_NE(refused({.replica_count = 3}, four).find("replicas is 3"), std::string::npos);
  Topology uneven = four;
  uneven.node_of_rank = {0, 0, 0, 1};
  EXPECT_NE(refused({.replica_count = 2}, uneven).find("distributed over nodes in the same way"), std::string::npos);
  EXPECT_EQ(refused({.replica_count = 2}, four), "");
  EXPECT_EQ(refused({.zero_stage = 0, .replica_count = 2, .reproducible = true}, four), "");
}

}  // namespace
}  // namespace aliquot
