// Replicas: the bits of plain sharding over the same ranks, and the memory that was planned.
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

Settings with(Settings settings, int replicas) {
  settings.options.replicas = replicas;
  return settings;
}

struct Layout {
  int ranks, replicas;
};
constexpr Layout kPowersOfTwo[] = {{2, 2}, {4, 2}, {4, 4}, {8, 2}, {8, 4}, {6, 3}};

const Precision kPrecisions[] = {{},
                                 {.compute = DType::kBFloat16, .gradients = DType::kBFloat16},
                                 {.compute = DType::kBFloat16, .reduce = DType::kBFloat16},
                                 {.compute = DType::kFloat16}};

/// Contiguous ranks are one block of the tree when they are a power of two, so their sum is a sum of plain sharding's.
TEST(Replicas, GiveTheBitsOfPlainSharding) {
  for (const auto& [ranks, replicas] : kPowersOfTwo) {
    for (const int stage : {1, 2, 3}) {
      for (const Precision& precision : kPrecisions) {
        for (const auto gather : {GatherMode::kCopy, GatherMode::kView}) {
          if (gather == GatherMode::kView && stage < 3) continue;
          Settings settings;
          settings.options = {.zero_stage = stage, .precision = precision, .gather = gather, .clip = 0.5};
          const Outcome plain = train_on(ranks, settings);
          EXPECT_GT(plain.norms[0], settings.options.clip) << "clipping is not exercised";
          EXPECT_TRUE(train_on(ranks, with(settings, replicas)) == plain)
              << ranks << " ranks, " << replicas << " replicas, stage " << stage << ", " << precision.describe();
        }
      }
    }
  }
}

/// Micro-batches that are added where they are written come to the ranks' sum as in plain sharding.
TEST(Replicas, AccumulateInFullGivesTheBitsOfPlainSharding) {
  for (const int stage : {1, 2, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .accumulate = 3, .accumulate_into = AccumulateInto::kFull};
    EXPECT_TRUE(train_on(4, with(settings, 2)) == train_on(4, settings)) << "stage " << stage;
  }
}

/// Into the shard, a replica adds up its own micro-batches before the others': another order, the same at every stage.
TEST(Replicas, AccumulateIntoTheShardIsTheSameAtEveryStage) {
  for (const Precision& precision : kPrecisions) {
    Settings settings;
    settings.options = {.zero_stage = 3,
                        .precision = precision,
                        .accumulate = 3,
                        .accumulate_into = AccumulateInto::kShard,
                        .prefetch = 2};
    const Outcome plain = train_on(4, settings), stage3 = train_on(4, with(settings, 2));
    for (std::size_t i = 0; i < plain.losses.size(); ++i)
      EXPECT_NEAR(stage3.losses[i], plain.losses[i], 2e-2 * plain.losses[i]);
    for (const int stage : {1, 2}) {
      settings.options.zero_stage = stage;
      EXPECT_TRUE(train_on(4, with(settings, 2)) == stage3) << "stage " << stage << ", " << precision.describe();
    }
  }
}

TEST(Replicas, ComposeWithUpdatesInBackwardAndOffload) {
  for (const int stage : {1, 3}) {
    Settings settings;
    settings.options = {.zero_stage = stage, .update_in_backward = true, .clip = 0};
    const Outcome plain = train_on(4, settings);
    settings.options.offload_state = Offload::kHost;
    if (stage == 3) settings.options.offload_parameters = Offload::kHost;
    EXPECT_TRUE(train_on(4, with(settings, 2)) == plain) << "stage " << stage;
  }
}

/// Updates in backward give places back within the step, to what peers might still be reading.
TEST(Replicas, AnAdversaryChangesNoBit) {
  for (const int stage : {1, 2, 3}) {
    for (const bool in_backward : {false, true}) {
      Settings settings;
      settings.options = {.zero_stage = stage,
                          .accumulate = in_backward ? 1 : 2,
                          .accumulate_into = AccumulateInto::kFull,
                          .gather = GatherMode::kCopy,
                          .update_in_backward = in_backward,
                          .clip = in_backward ? 0.0 : 1.0};
      settings.steps = 3;
      const Outcome plain = train_on(4, settings);
      for (uint64_t seed = 0; seed < 20; ++seed) {
        AdversarialScheduler adversary(
            seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
        const auto options =
            WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
        EXPECT_TRUE(train_on(4, with(settings, 2), options) == plain)
            << "seed " << seed << ", stage " << stage << (in_backward ? ", in backward" : "");
      }
    }
  }
}

/// Two units of which the second in backward is the larger: its sum lies where peers read the first one's. The parameters
/// after three steps.
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
          const auto whole = engine.read(name);
          if (world.rank() == 0) parameters.insert(parameters.end(), whole.begin(), whole.end());
        }
      },
      world_options);
  return parameters;
}

TEST(Replicas, APlaceIsGivenBackWhenPeersAreThroughWithIt) {
  const std::vector<float> plain = train_growing_units(kHosts, 1);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    AdversarialScheduler adversary(seed, AdversarialScheduler::Compute::kQueued);
    const auto options =
        WorldOptions{.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }};
    EXPECT_TRUE(train_growing_units(options, 2) == plain) << "seed " << seed;
  }
}

TEST(Replicas, TakeTheMemoryThatWasPlanned) {
  for (const int stage : {1, 2, 3}) {
    for (const int accumulate : {1, 2}) {
      Settings settings;
      settings.options = {.zero_stage = stage, .replicas = 2, .accumulate = accumulate};
      World::threads(
          6,
          [&](World& world) {
            EngineWithModel trainee(world, settings);
            for (int step = 0; step < 2; ++step) {
              for (int m = 0; m < accumulate; ++m)
                train_micro_batch(trainee.engine, trainee.model, step, m, world.rank());
              EXPECT_FALSE(trainee.engine.step().skipped);
            }
            const Account planned = account(trainee.engine.plan().schedule);
            EXPECT_EQ(world.device().ledger().peak(), planned.peak) << "stage " << stage;
            EXPECT_EQ(world.device().ledger().in_use_peak_bytes(), planned.peak_bytes) << "stage " << stage;
          },
          kHosts);
    }
  }
}

/// Of every element one rank in all saves, and all hold the same.
TEST(Replicas, OneOfThemIsSaved) {
  World::threads(
      4,
      [](World& world) {
        Settings settings;
        settings.options = {.zero_stage = 3, .replicas = 2};
        EngineWithModel trainee(world, settings);
        train_micro_batch(trainee.engine, trainee.model, 0, 0, world.rank());
        EXPECT_FALSE(trainee.engine.step().skipped);
        const State state = trainee.engine.state();
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

/// One rank's bad gradient, or its giving up, skips the step on every rank of every replica.
TEST(Replicas, SkipTogether) {
  for (const bool abandons : {false, true}) {
    World::threads(
        4,
        [&](World& world) {
          Settings settings;
          settings.options = {.zero_stage = 3, .replicas = 2};
          EngineWithModel trainee(world, settings);
          const bool bad = world.rank() == 3;
          if (bad && abandons) {
            trainee.engine.abandon();
          } else {
            train_micro_batch(trainee.engine, trainee.model, 0, 0, world.rank(),
                              bad ? std::numeric_limits<float>::infinity() : 1.0f);
          }
          const StepReport report = trainee.engine.step();
          EXPECT_TRUE(report.skipped);
          EXPECT_EQ(report.abandoned_by, abandons ? 3 : -1);
          EXPECT_EQ(report.first_not_finite.empty(), abandons);
          train_micro_batch(trainee.engine, trainee.model, 1, 0, world.rank());
          EXPECT_FALSE(trainee.engine.step().skipped) << "the step after is clean";
        },
        kHosts);
  }
}

TEST(Replicas, EvaluateAndFreeze) {
  Settings settings;
  settings.options = {.zero_stage = 3};
  EXPECT_EQ(freeze_and_evaluate(4, with(settings, 2)), freeze_and_evaluate(4, settings));
}

TEST(Replicas, AreRefusedWithASentence) {
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
  EXPECT_NE(refused({.zero_stage = 0, .replica_count = 2}, four).find("stages 1 to 3"), std::string::npos);
  EXPECT_NE(refused({.replica_count = 3}, four).find("do not make 3 replicas"), std::string::npos);
  EXPECT_NE(refused({.replica_count = 2, .reproducible = true}, four).find("--reproducible"), std::string::npos);
  Topology uneven = four;
  uneven.node_of_rank = {0, 0, 0, 1};
  EXPECT_NE(refused({.replica_count = 2}, uneven).find("lie alike"), std::string::npos);
  EXPECT_EQ(refused({.replica_count = 2}, four), "");
}

}  // namespace
}  // namespace aliquot
