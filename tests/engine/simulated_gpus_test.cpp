// Tests of the engine on simulated GPUs. They need no GPU.
#include <gtest/gtest.h>

#include "tests/engine/blocks_training.h"
#include "tests/engine/run/checked_pair.h"
#include "tests/engine/split_blocks.h"
#include "tests/engine/tensor_blocks.h"
#include "tests/support/all_cases.h"
#include "tests/support/scoped_ranks_per_node.h"
#include "tests/support/simulated/simulated_cuda.h"
#include "tests/support/simulated/simulated_nccl.h"

namespace aliquot {
namespace {

using namespace testing_model;

WorldOptions world_options(WorldChoice kind) {
  return {.device = DeviceChoice::kCuda, .kind = kind, .timeout_seconds = 60};
}

Settings settings_of(int stage, const Precision& precision, int accumulate) {
  Settings settings;
  settings.options = {.zero_stage = stage, .precision = precision, .accumulate = accumulate, .clip = 0.5};
  settings.steps = 3;
  return settings;
}

const Precision kPrecisions[] = {
    {},
    {.compute = DType::kBFloat16},
    {.compute = DType::kBFloat16, .master = MasterForm::kFp32},
    {.compute = DType::kBFloat16, .gradients = DType::kBFloat16},
    {.compute = DType::kFloat16, .reduce = DType::kBFloat16},
};

TEST(SimulatedGpus, AreBitwiseIdenticalToTheReference) {
  for (const int ranks : {1, 2, 4}) {
    for (const Precision& precision : kPrecisions) {
      for (const int accumulate : {1, 2}) {
        for (const int stage : {0, 1, 2, 3}) {
          const Settings settings = settings_of(stage, precision, accumulate);
          const Outcome reference = train_without_engine(ranks, settings);
          World::threads(
              ranks,
              [&](World& world) {
                EXPECT_EQ(world.device().kind(), DeviceKind::kCuda);
                EXPECT_TRUE(train(world, settings) == reference)
                    << ranks << " ranks, ZeRO stage " << stage << ", " << precision.describe();
              },
              world_options(WorldChoice::kThreads));
        }
      }
    }
  }
}

/// Gathers must not wait for reduces, which wait for backward.
TEST(SimulatedGpus, GathersHaveAnNcclCommunicatorOfTheirOwn) {
  for (const bool separate : {true, false}) {
    WorldOptions options = world_options(WorldChoice::kNccl);
    options.nccl.gather_communicator = separate;
    simulated::take_nccl_configurations();  // those that earlier tests made on this thread
    World::threads(
        2,
        [&](World& world) {
          train(world, settings_of(3, {}, 1));
          EXPECT_EQ(std::ssize(simulated::take_nccl_configurations()), separate ? 2 : 1);
        },
        options);
  }
}

/// The model reads and writes the memory of simulated GPUs directly. In reproducible steps, NCCL adds in tree order, so
/// all worlds give the same bits.
TEST(SimulatedGpus, CollectivesOfUsesGiveTheBitsOfHosts) {
  for (const int tensor : {2, 4}) {
    const EngineOptions options{.zero_stage = 2, .tensor = tensor, .reproducible = true};
    std::vector<TensorTrained> reference(4);
    World::threads(
        4, [&](World& world) { reference[world.rank()] = train_tensor_blocks(world, options); }, kHosts);
    for (const auto kind : {WorldChoice::kThreads, WorldChoice::kNccl}) {
      World::threads(
          4, [&](World& world) { EXPECT_TRUE(train_tensor_blocks(world, options) == reference[world.rank()]); },
          world_options(kind));
    }
  }
}

TEST(SimulatedGpus, SplitParametersGiveTheBitsOfHosts) {
  for (const int tensor : {2, 4}) {
    for (const int zero_stage : {0, 3}) {
      const EngineOptions options{.zero_stage = zero_stage, .tensor = tensor, .reproducible = true};
      std::vector<TensorTrained> reference(4);
      World::threads(
          4, [&](World& world) { reference[world.rank()] = train_split_blocks(world, options); }, kHosts);
      for (const auto kind : {WorldChoice::kThreads, WorldChoice::kNccl}) {
        World::threads(
            4, [&](World& world) { EXPECT_TRUE(train_split_blocks(world, options) == reference[world.rank()]); },
            world_options(kind));
      }
    }
  }
}

/// Without `reproducible`, NCCL chooses the order in which it adds. The order may differ between the shard groups of
/// different tensor coordinates, but copies of full parameters must have the same bits. So their gradients are added in
/// tree order, which three data ranks distinguish from other orders.
TEST(SimulatedGpus, NcclAddsGradientsOfFullParametersInTreeOrderWithTensorGroups) {
  for (const int replicas : {1, 3}) {
    const EngineOptions options{.zero_stage = 2, .replicas = replicas, .tensor = 2};
    std::vector<TensorTrained> reference(6);
    World::threads(
        6, [&](World& world) { reference[world.rank()] = train_tensor_blocks(world, options); }, kHosts);
    World::threads(
        6,
        [&](World& world) {
          EXPECT_TRUE(train_tensor_blocks(world, options) == reference[world.rank()]) << replicas << " replicas";
        },
        world_options(WorldChoice::kNccl));
  }
}

TEST(SimulatedGpus, UpdateInBackwardAndReproducibleMatchTheReference) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool in_backward : {false, true}) {
      Settings settings = settings_of(stage, {}, in_backward ? 1 : 4);
      settings.options.clip = 0;
      settings.options.update_in_backward = in_backward;
      settings.options.reproducible = !in_backward;
      const Outcome reference = train_without_engine(2, settings);
      World::threads(
          2, [&](World& world) { EXPECT_TRUE(train(world, settings) == reference) << "ZeRO stage " << stage; },
          world_options(WorldChoice::kThreads));
    }
  }
}

TEST(SimulatedGpus, OffloadToHostMemoryMatchesTheReference) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const Precision& precision : kPrecisions) {
      Settings settings = settings_of(stage, precision, 2);
      const Outcome reference = train_without_engine(2, settings);
      settings.options.offload_state = Offload::kHost;
      if (stage == 3) settings.options.offload_parameters = Offload::kHost;
      World::threads(
          2,
          [&](World& world) {
            EXPECT_TRUE(train(world, settings) == reference) << "ZeRO stage " << stage << ", " << precision.describe();
            const BytesByCategory peak = world.device().ledger().peak();
            EXPECT_EQ(peak[static_cast<std::size_t>(Category::kOptimizer)], 0);
          },
          world_options(WorldChoice::kThreads));
    }
  }
}

/// Matrices are transferred to their owners and back. The transfers are NCCL sends, or kernels that read peer memory.
TEST(SimulatedGpus, MuonMatchesTheReference) {
  for (const int ranks : {1, 2, 4}) {
    for (const int stage : {0, 1, 3}) {
      Settings settings = settings_of(stage, {}, 1);
      settings.options.optimizer = Muon{.lr = 6e-4f};
      settings.options.reproducible = true;
      if (ranks == 4) settings.options.offload_state = Offload::kHost;
      const Outcome reference = train_without_engine(ranks, settings);
      for (const WorldChoice kind : {WorldChoice::kThreads, WorldChoice::kNccl}) {
        World::threads(
            ranks,
            [&](World& world) {
              EXPECT_TRUE(train(world, settings) == reference) << ranks << " ranks, ZeRO stage " << stage;
            },
            world_options(kind));
      }
    }
  }
}

/// Quantized collectives use NCCL sends, or kernels that read peer memory. Both add in tree order.
TEST(SimulatedGpus, QuantizedTrainingMatchesTheReference) {
  for (const auto& [nodes, ranks_per_node] : {std::pair(2, 1), {2, 2}, {4, 1}}) {
    const test::ScopedRanksPerNode emulated_nodes(ranks_per_node);
    for (const Precision& precision : {kPrecisions[0], kPrecisions[1]}) {
      Settings settings = settings_of(3, precision, 2);
      settings.options.quantize_weights = settings.options.quantize_gradients = true;
      settings.nodes = nodes;
      const Outcome reference = train_without_engine(nodes * ranks_per_node, settings);
      for (const WorldChoice kind : {WorldChoice::kThreads, WorldChoice::kNccl}) {
        World::threads(
            nodes * ranks_per_node,
            [&](World& world) { EXPECT_TRUE(train(world, settings) == reference) << nodes << "x" << ranks_per_node; },
            world_options(kind));
      }
    }
  }
}

TEST(SimulatedGpus, UseThePlannedMemory) {
  for (const int stage : {0, 1, 2, 3}) {
    const Settings settings = settings_of(stage, {.compute = DType::kBFloat16}, 2);
    World::threads(
        3, [&](World& world) { expect_planned_memory(world, settings); }, world_options(WorldChoice::kThreads));
  }
}

TEST(SimulatedGpus, CheckingModeDoesNotChangeResults) {
  for (const int stage : {0, 1, 2, 3}) {
    Settings settings = settings_of(stage, kPrecisions[1], 2);
    const Outcome reference = train_without_engine(2, settings);
    settings.options.check = true;
    World::threads(
        2, [&](World& world) { EXPECT_TRUE(train(world, settings) == reference) << "ZeRO stage " << stage; },
        world_options(WorldChoice::kThreads));
  }
}

TEST(SimulatedGpus, CheckingModeFindsWritesBeyondGradients) {
  for (const int stage : {0, 2, 3}) {
    World::threads(
        1,
        [&](World& world) {
          Pair pair(world, {.zero_stage = stage, .check = true});
          pair.forward();
          {
            const Scope live = pair.engine.units()[1].backward();
            pair.engine.compute_stream().synchronize();
            pair.gradient[1][kCount] = 1;
          }
          EXPECT_EQ(usage_error_message([&] { const Scope live = pair.engine.units()[0].backward(); }),
                    "backward b wrote beyond the gradient of b.w: at element 64, but the declared elements are 0 to 63 "
                    "(found by EngineOptions::check)");
        },
        world_options(WorldChoice::kThreads));
  }
}

/// NCCL chooses the order in which it adds. All ZeRO stages give the same bits, but losses agree with the reference
/// only approximately.
TEST(SimulatedGpus, AllStagesGiveTheSameResultsOverNccl) {
  for (const int ranks : {1, 2, 4}) {
    Outcome stage0;
    for (const int stage : {0, 1, 2, 3}) {
      const Settings settings = settings_of(stage, {}, 1);
      const Outcome reference = train_without_engine(ranks, settings);
      World::threads(
          ranks,
          [&](World& world) {
            const Outcome outcome = train(world, settings);
            for (std::size_t i = 0; i < reference.losses.size(); ++i)
              EXPECT_NEAR(outcome.losses[i], reference.losses[i], 1e-4 * reference.losses[i]);
            if (world.rank() != 0) return;
            if (stage == 0) stage0 = outcome;
            EXPECT_TRUE(outcome == stage0) << ranks << " ranks, ZeRO stage " << stage;
          },
          world_options(WorldChoice::kNccl));
    }
  }
}

TEST(SimulatedGpus, ReplicasDoNotChangeResults) {
  for (const int stage : {1, 2, 3}) {
    for (const Precision& precision : kPrecisions) {
      Settings settings = settings_of(stage, precision, 1);
      const Outcome reference = train_without_engine(4, settings);
      settings.options.replicas = 2;
      World::threads(
          4, [&](World& world) { EXPECT_TRUE(train(world, settings) == reference) << "ZeRO stage " << stage; },
          world_options(WorldChoice::kThreads));
      World::threads(
          4,
          [&](World& world) {  // NCCL chooses the order in which it adds, so losses agree only approximately
            const Outcome outcome = train(world, settings);
            for (std::size_t i = 0; i < reference.losses.size(); ++i)
              EXPECT_NEAR(outcome.losses[i], reference.losses[i], 1e-2 * reference.losses[i]);
          },
          world_options(WorldChoice::kNccl));
    }
  }
}

/// With `reproducible`, sums over NCCL are also in tree order.
TEST(SimulatedGpus, ReproducibleOverNcclMatchesTheReference) {
  for (const int ranks : {2, 4}) {
    for (const int stage : {1, 3}) {
      Settings settings = settings_of(stage, {}, 2);
      settings.options.reproducible = true;
      const Outcome reference = train_without_engine(ranks, settings);
      World::threads(
          ranks,
          [&](World& world) {
            EXPECT_TRUE(train(world, settings) == reference) << ranks << " ranks, ZeRO stage " << stage;
          },
          world_options(WorldChoice::kNccl));
    }
  }
}

double norm_of_a_step(World& world, int recompute) {
  EngineWithBlocks setup(world, {.recompute = recompute, .gather = GatherMode::kCopy});
  setup.micro_batch(0.5 + world.rank());
  const double norm = setup.engine.step().gradient_norm;
  EXPECT_EQ(world.device().ledger().peak(), account(setup.engine.plan().schedule).peak);
  return norm;
}

TEST(SimulatedGpus, RecomputeMatchesHosts) {
  double on_hosts = 0;
  World::threads(
      2,
      [&](World& world) {
        const double norm = norm_of_a_step(world, 0);
        if (world.rank() == 0) on_hosts = norm;
      },
      kHosts);
  for (const int recompute : {0, 2, 4}) {
    World::threads(
        2, [&](World& world) { EXPECT_EQ(norm_of_a_step(world, recompute), on_hosts) << recompute; },
        world_options(WorldChoice::kThreads));
  }
}

/// Pipeline stages exchange data through kernels that read peer memory, or through NCCL. A pipeline stage has at most
/// two ranks. Two ranks have only one order of additions, so NCCL gives the same bits as hosts.
TEST(SimulatedGpus, PipelinesMatchHosts) {
  test::CaseSelection selection(3);
  for (const int zero_stage : {0, 1, 3}) {
    for (const auto& [stages, data_ranks] : {std::pair(2, 1), {2, 2}, {4, 1}}) {
      for (const bool tied : {false, true}) {
        const EngineOptions common{.zero_stage = zero_stage,
                                   .accumulate = 3,
                                   .accumulate_into = AccumulateInto::kShard,
                                   .recompute = zero_stage == 3 ? 2 : 0,
                                   .gather = GatherMode::kCopy};
        const Trained reference = train_by_passes(data_ranks, common, kHosts, tied);
        for_schedules(common, stages, tied, [&](const EngineOptions& options) {
          for (const WorldChoice kind : {WorldChoice::kThreads, WorldChoice::kNccl}) {
            if (!selection.next()) continue;
            EXPECT_TRUE(train_by_passes(data_ranks, options, world_options(kind), tied) == reference)
                << describe(options) << (tied ? ", tied" : "") << (kind == WorldChoice::kNccl ? ", NCCL" : "");
          }
        });
      }
    }
  }
}

/// An allocation may wait until all work on the GPU has finished. If this work contains a collective, and another rank
/// also waits in an allocation before it issues the same collective, both ranks wait forever.
TEST(SimulatedGpus, MakeNothingAfterTheFirstStep) {
  for (const WorldChoice kind : {WorldChoice::kThreads, WorldChoice::kNccl}) {
    for (const bool reproducible : {false, true}) {
      World::threads(
          2,
          [&](World& world) {
            EngineWithModel setup(world, {.options = {.zero_stage = 3, .accumulate = 2, .reproducible = reproducible}});
            int64_t made = 0;
            for (int step = 0; step < 3; ++step) {
              for (int m = 0; m < 2; ++m) train_micro_batch(setup.engine, setup.model, step, m, world.rank());
              EXPECT_FALSE(setup.engine.step().skipped);
              world.communicator().gather_objects("end of step");
              if (step == 0) made = simulated::made_resources();
              world.communicator().gather_objects("counted");
            }
            EXPECT_EQ(simulated::made_resources(), made) << "reproducible " << reproducible;
            world.communicator().gather_objects("compared");
          },
          world_options(kind));
    }
  }
}

/// Ranks on several GPUs do not read one another's parameters in place.
TEST(SimulatedGpus, ViewsOfOtherGpusThrow) {
  World::threads(
      2,
      [](World& world) {
        Engine engine(world, {.zero_stage = 3, .gather = GatherMode::kView});
        SmallModel model;
        EXPECT_THROW(declare(engine, model), UsageError);
      },
      world_options(WorldChoice::kThreads));
}

}  // namespace
}  // namespace aliquot
