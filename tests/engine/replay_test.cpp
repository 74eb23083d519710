// Tests that replays (EngineOptions::replay_every) change no result, raise no false alarm, and name the rank that
// computes wrong gradients. Compiled for several worlds: see tested_world.h.
#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <gtest/gtest.h>
#include <optional>

#include "engine/choose/pipeline_schedule.h"
#include "kernels/system/error.h"
#include "tests/engine/split_blocks.h"
#include "tests/engine/tested_world.h"
#include "tests/support/adversarial_device.h"
#include "tests/support/all_cases.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Changes what a rank computes in a use, after its model code. Called on the rank's own thread.
using Sabotage = std::function<void(const Work&, int64_t step, SmallModel&, Stream&)>;

struct Trained {
  std::vector<double> norms;
  std::vector<float> parameters;
  friend bool operator==(const Trained&, const Trained&) = default;
};

void run_step(Engine& engine, SmallModel& model, int64_t step, const Sabotage& sabotage = {}) {
  while (const auto work = engine.next()) {
    run_use(engine, model, *work, samples(step, work->micro_batch, work->data_coordinate));
    if (sabotage) sabotage(*work, step, model, engine.compute_stream());
  }
}

/// Trains settings.steps steps through Engine::next(). Expects the planned peak of the memory.
Trained train_by_next(World& world, const Settings& settings) {
  EngineWithModel setup(world, settings);
  auto& [model, engine] = setup;
  Trained trained;
  for (int64_t step = 1; step <= settings.steps; ++step) {
    run_step(engine, model, step);
    const StepReport report = engine.step();
    const int every = engine.plan().policy.replay_every;
    EXPECT_EQ(report.replay_seconds > 0, every > 0 && step % every == 0);
    trained.norms.push_back(report.gradient_norm);
  }
  if (!kTestsNccl) {  // plans do not include the memory of NCCL
    EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
  }
  trained.parameters = read_all(engine);
  return trained;
}

Trained train_by_next(int ranks, const Settings& settings, const WorldOptions& world_options = kTestedWorld) {
  Trained trained;
  World::threads(
      ranks,
      [&](World& world) {
        const Trained own = train_by_next(world, settings);
        if (world.rank() == 0) trained = own;
      },
      world_options);
  return trained;
}

std::vector<EngineOptions> all_options(int stage) {
  using enum Offload;
  const std::string folder = std::filesystem::temp_directory_path();
  std::vector<EngineOptions> all = {
      {.zero_stage = stage},
      {.zero_stage = stage, .accumulate = 3},
      {.zero_stage = stage, .accumulate = 2, .accumulate_into = AccumulateInto::kFull},
      {.zero_stage = stage, .accumulate = 2, .accumulate_into = AccumulateInto::kShard},
      {.zero_stage = stage, .precision = {.compute = DType::kBFloat16, .gradients = DType::kBFloat16}},
      {.zero_stage = stage, .precision = {.compute = DType::kFloat16}, .accumulate = 2},
      {.zero_stage = stage, .optimizer = Muon{}},
      {.zero_stage = stage, .offload_state = kHost, .check_state = true},
      {.zero_stage = stage, .check = true}};
  if (stage == 3) {
    all.push_back({.zero_stage = 3, .accumulate = 2, .gather = GatherMode::kCopy});
    all.push_back({.zero_stage = 3, .quantize_weights = true});
    all.push_back({.zero_stage = 3, .offload_parameters = kDisk, .offload_parameters_to = folder});
  }
  std::erase_if(all, [](const EngineOptions& options) { return !is_supported(options); });
  return all;
}

std::string describe(int ranks, const EngineOptions& options) {
  return fmt::format("{} ranks, ZeRO stage {}, {}, {} micro-batches into {}, {}", ranks, options.zero_stage,
                     options.precision.describe(), options.accumulate, static_cast<int>(options.accumulate_into),
                     name(options.optimizer));
}

TEST(Replay, ChangesNoResultAndRaisesNoFalseAlarm) {
  test::CaseSelection selection(kTestsHosts ? 1 : 11);
  for (const int ranks : {2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (EngineOptions options : all_options(stage)) {
        if (!selection.next()) continue;
        const Trained plain = train_by_next(ranks, {.options = options}, kReferenceWorld);
        for (const int every : {1, 2}) {
          options.replay_every = every;
          EXPECT_TRUE(train_by_next(ranks, {.options = options}) == plain) << describe(ranks, options);
        }
      }
    }
  }
}

TEST(Replay, ChangesNoResultOfReplicasAndReproducibleSums) {
  for (const int stage : {0, 1, 2, 3}) {
    for (EngineOptions options : {EngineOptions{.zero_stage = stage, .replicas = 2, .accumulate = 2},
                                  EngineOptions{.zero_stage = stage, .replicas = 4},
                                  EngineOptions{.zero_stage = stage, .accumulate = 4, .reproducible = true}}) {
      const Trained plain = train_by_next(4, {.options = options}, kReferenceWorld);
      options.replay_every = 1;
      EXPECT_TRUE(train_by_next(4, {.options = options}) == plain) << describe(4, options);
    }
  }
}

TEST(Replay, AdversarialSchedulingChangesNoResult) {
  if (!kTestsHosts) GTEST_SKIP() << "the adversarial device is a host";
  for (const int stage : {0, 2, 3}) {
    EngineOptions options{
        .zero_stage = stage, .accumulate = 2, .gather = stage == 3 ? GatherMode::kCopy : GatherMode::kAuto};
    const Trained plain = train_by_next(3, {.options = options});
    options.replay_every = 2;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      AdversarialScheduler adversary(
          seed, seed % 2 == 0 ? AdversarialScheduler::Compute::kInline : AdversarialScheduler::Compute::kQueued);
      EXPECT_TRUE(train_by_next(3, {.options = options},
                                {.timeout_seconds = 60, .make_device = [&](int) { return adversary.make_device(); }}) ==
                  plain)
          << "seed " << seed << ", " << describe(3, options);
    }
  }
}

/// Layer 0 is frozen in the second and third step, and an evaluation follows each step.
TEST(Replay, ChangesNoResultWithFrozenLayersAndEvaluations) {
  for (const int stage : {0, 1, 2, 3}) {
    std::vector<double> results[2];
    for (const int every : {0, 1}) {
      World::threads(
          3,
          [&](World& world) {
            EngineWithModel setup(world, {.options = {.zero_stage = stage, .replay_every = every}});
            auto& [model, engine] = setup;
            for (int64_t step = 1; step <= 4; ++step) {
              if (step == 2) engine.set_trainable("layer.0", false);
              if (step == 4) engine.set_trainable("layer.0", true);
              model.frozen[1] = model.frozen[2] = step == 2 || step == 3;
              run_step(engine, model, step);
              const double norm = engine.step().gradient_norm;
              const double loss = evaluate(engine, model, step, world.rank());
              if (world.rank() == 0) results[every].insert(results[every].end(), {norm, loss});
            }
          },
          every == 0 ? kReferenceWorld : kTestedWorld);
    }
    EXPECT_EQ(results[0], results[1]) << "ZeRO stage " << stage;
  }
}

/// Trains three steps of SplitBlocks on a mesh. Returns the parameters of rank 0.
std::vector<float> train_on_mesh(int data_ranks, const EngineOptions& options, bool tied) {
  std::vector<float> parameters;
  World::threads(
      data_ranks * options.pipeline * options.tensor,
      [&](World& world) {
        // After an exception, the engine's destructor waits for work that uses the blocks.
        std::optional<BasicSplitBlocks<float>> made;
        Engine engine(world, options);
        auto& blocks =
            made.emplace(engine, world.rank(), options.tensor, BasicSplitBlocks<float>::Variant{.tied = tied});
        for (int step = 0; step < 3; ++step) {
          while (const auto work = engine.next())
            blocks.run(*work, step + 0.1 * work->micro_batch + 0.01 * work->data_coordinate);
          EXPECT_FALSE(engine.step().skipped);
        }
        const std::vector<float> own = read_split_blocks(engine);
        if (world.rank() == 0) parameters = own;
      },
      kTestedWorld);
  return parameters;
}

TEST(Replay, ChangesNoResultOnMeshes) {
  using enum PipelineSchedule;
  test::CaseSelection selection(kTestsHosts ? 1 : 13);
  for (const int stage : {0, 1, 2, 3}) {
    for (const int tensor : {1, 2}) {
      for (const bool tied : {false, true}) {
        for (const auto schedule : {k1F1B, kGpipe, kInterleaved}) {
          if (!selection.next()) continue;
          EngineOptions options{.zero_stage = stage,
                                .accumulate = 3,
                                .tensor = tensor,
                                .pipeline = 2,
                                .pipeline_schedule = schedule,
                                .pipeline_cut = schedule == kInterleaved ? std::vector{2, 2, 2, 2} : std::vector{4, 4},
                                .accumulate_into = AccumulateInto::kShard};
          if (tied) ++options.pipeline_cut.front();
          const auto plain = train_on_mesh(2, options, tied);
          options.replay_every = 1;
          EXPECT_EQ(train_on_mesh(2, options, tied), plain) << "ZeRO stage " << stage << ", tensor " << tensor;
        }
      }
    }
  }
}

/// Flips a low bit of the mantissa of the last element.
void flip(float* values, int64_t count) {
  values[count - 1] = std::bit_cast<float>(std::bit_cast<uint32_t>(values[count - 1]) ^ 1u << 12);
}

/// In which passes a rank computes wrong results: its own, those of a replay, or both.
enum class Passes : uint8_t { kOwn, kReplay, kBoth };

struct Fault {
  int rank;
  int64_t first_step = 1, last_step = 1;
  Passes passes = Passes::kBoth;
  bool in_forward = false;  // false: in the gradient of layer.1.weight
};

void inject(const Fault& fault, const Work& work, int64_t step, SmallModel& model, Stream& compute) {
  if (step < fault.first_step || step > fault.last_step || work.micro_batch != 0) return;
  if (fault.passes != Passes::kBoth && work.replayed != (fault.passes == Passes::kReplay)) return;
  constexpr int kUse = 2, kTensor = 3;  // layer.1.weight
  if (work.use != kUse) return;
  if (fault.in_forward == (work.kind == UseKind::kForward)) {
    if (fault.in_forward) {
      compute.run([&model] { model.corrupt_hidden(); });
    } else {
      compute.run(
          [gradient = static_cast<float*>(model.gradient.at[kTensor])] { flip(gradient, element_count(kTensor)); });
    }
  }
}

/// Trains with a fault. Returns the finding of the ReplayError, and the step in which it was thrown.
std::optional<std::pair<ReplayError::Finding, int64_t>> find(int ranks, const EngineOptions& options,
                                                             const Fault& fault, std::string* message = nullptr) {
  std::atomic<int64_t> thrown_in = 0;
  try {
    World::threads(
        ranks,
        [&](World& world) {
          EngineWithModel setup(world, {.options = options});
          auto& [model, engine] = setup;
          for (int64_t step = 1; step <= 8; ++step) {
            if (world.rank() == 0) thrown_in = step;
            run_step(engine, model, step, [&](const Work& work, int64_t at, SmallModel& of, Stream& compute) {
              if (world.rank() == fault.rank) inject(fault, work, at, of, compute);
            });
            EXPECT_FALSE(engine.step().skipped);
          }
        },
        kTestedWorld);
  } catch (const ReplayError& error) {
    if (message != nullptr) *message = error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::kFault);
    return std::pair{error.finding(), thrown_in.load()};
  }
  return std::nullopt;
}

TEST(Replay, NamesEveryRankThatComputesWrongGradients) {
  test::CaseSelection selection(kTestsHosts ? 1 : 11);
  constexpr int64_t kAlways = 1000;
  for (const int ranks : {3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const bool in_forward : {false, true}) {
          const EngineOptions options{.zero_stage = stage, .accumulate = 2, .replay_every = 4};
          for (const Fault& fault :
               {Fault{rank, 2, kAlways, Passes::kBoth, in_forward}, Fault{rank, 4, 4, Passes::kOwn, in_forward},
                Fault{rank, 4, 4, Passes::kReplay, in_forward}}) {
            if (!selection.next()) continue;
            const auto found = find(ranks, options, fault);
            ASSERT_TRUE(found) << "rank " << rank << " of " << ranks << ", ZeRO stage " << stage;
            EXPECT_EQ(found->first.ranks, std::vector{rank});
            EXPECT_EQ(found->first.nodes, std::vector{0});
            EXPECT_TRUE(found->first.is_decided);
            EXPECT_EQ(found->second, 4) << "a permanent fault is found within replay_every steps";
            // A wrong gradient of one layer changes no other gradient. A wrong activation changes the gradients of all
            // units, and those of the last use are computed first.
            EXPECT_EQ(found->first.unit, in_forward ? "layer.2" : "layer.1");
            if (!in_forward) {
              EXPECT_EQ(found->first.block, (element_count(3) - 1) / kBlockElements);
            }
          }
        }
      }
    }
  }
}

/// What a model does with the part of activations that it does not use.
enum class Rest : uint8_t { kCleared, kUndefined, kGarbage };

/// Writes the part of activations that SplitBlocks leaves undefined.
void write_rest(Engine& engine, void* activations, Rest rest) {
  using Blocks = BasicSplitBlocks<float>;
  static std::atomic<int> next = 1;
  if (rest == Rest::kUndefined) return;
  const float value = rest == Rest::kCleared ? 0.0f : static_cast<float>(next++);
  engine.compute_stream().run([activations, value] {
    constexpr int kUsed = Blocks::kRows * Blocks::kIn, kAll = 8 * Blocks::kIn;
    std::fill_n(static_cast<float*>(activations) + kUsed, kAll - kUsed, value);
  });
}

/// Trains SplitBlocks on a mesh. In the passes that `passes` selects, rank `faulty` flips one bit of the result of its
/// last use: of the output (`forward`) or of the gradient of the input. It flips no bit of a parameter's gradient.
/// Returns the finding.
std::optional<ReplayError::Finding> find_on_mesh(int data_ranks, const EngineOptions& options, int faulty, bool forward,
                                                 Passes passes, Rest rest = Rest::kCleared) {
  try {
    World::threads(
        data_ranks * options.pipeline * options.tensor,
        [&](World& world) {
          // After an exception, the engine's destructor waits for work that uses the blocks.
          std::optional<BasicSplitBlocks<float>> made;
          Engine engine(world, options);
          auto& blocks = made.emplace(engine, world.rank(), options.tensor, BasicSplitBlocks<float>::Variant{});
          const VirtualStage& run = engine.plan().stage.runs.back();
          for (int step = 1; step <= 4; ++step) {
            while (const auto work = engine.next()) {
              blocks.run(*work, step + 0.1 * work->micro_batch + 0.01 * work->data_coordinate);
              write_rest(engine, work->kind == UseKind::kForward ? work->memory().output : work->memory().backward,
                         rest);
              const bool is_last = forward ? work->kind == UseKind::kForward && work->use == run.last_use()
                                           : work->kind == UseKind::kBackward && work->use == run.first_use;
              const bool is_pass = passes == Passes::kBoth || work->replayed == (passes == Passes::kReplay);
              if (world.rank() != faulty || !is_last || !is_pass || work->micro_batch != 0) continue;
              auto* result = static_cast<float*>(forward ? work->memory().output : work->memory().backward);
              engine.compute_stream().run([result] { flip(result, 1); });
            }
            EXPECT_FALSE(engine.step().skipped);
          }
        },
        kTestedWorld);
  } catch (const ReplayError& error) {
    return error.finding();
  }
  return std::nullopt;
}

/// A wrong result that one pipeline stage sends changes gradients of other stages too, or only of them.
TEST(Replay, NamesThePipelineStageThatSentAWrongResult) {
  test::CaseSelection selection(kTestsHosts ? 1 : 11);
  using enum PipelineSchedule;
  for (const auto schedule : {k1F1B, kInterleaved}) {
    const EngineOptions options{.zero_stage = 2,
                                .accumulate = 2,
                                .pipeline = 2,
                                .pipeline_schedule = schedule,
                                .pipeline_cut = schedule == kInterleaved ? std::vector{2, 2, 2, 2} : std::vector{4, 4},
                                .replay_every = 2};
    for (int rank = 0; rank < 6; ++rank) {
      for (const bool forward : {false, true}) {
        if (!forward && rank < 3 && schedule == k1F1B) continue;  // no rank reads the gradient of the input
        for (const Passes passes : {Passes::kOwn, Passes::kReplay, Passes::kBoth}) {
          if (!selection.next()) continue;
          const auto found = find_on_mesh(3, options, rank, forward, passes);
          ASSERT_TRUE(found) << "rank " << rank << (forward ? " forward" : " backward");
          EXPECT_EQ(found->ranks, std::vector{rank}) << (forward ? "forward" : "backward");
          EXPECT_TRUE(found->is_decided);
        }
      }
    }
  }
}

/// A model may leave bytes of its activations undefined. The engine clears what a pipeline stage sends, so that these
/// bytes do not differ.
TEST(Replay, NamesThePipelineStageIfActivationsAreUndefined) {
  test::CaseSelection selection(kTestsHosts ? 1 : 5);
  const EngineOptions options{.zero_stage = 2, .pipeline = 2, .pipeline_cut = {4, 4}, .replay_every = 2};
  for (int rank = 0; rank < 6; ++rank) {
    for (const bool forward : {false, true}) {
      if (!forward && rank < 3) continue;  // no rank reads the gradient of the input
      for (const Passes passes : {Passes::kOwn, Passes::kReplay, Passes::kBoth}) {
        if (!selection.next()) continue;
        const auto found = find_on_mesh(3, options, rank, forward, passes, Rest::kUndefined);
        ASSERT_TRUE(found);
        EXPECT_TRUE(found->is_decided);
        EXPECT_EQ(found->ranks, std::vector{rank}) << (forward ? "forward" : "backward");
      }
    }
  }
}

/// If a model writes other bytes each time, the data that a pipeline stage sends cannot be compared.
TEST(Replay, NamesRanksOfTheDataCoordinateIfSentDataAlwaysDiffers) {
  test::CaseSelection selection(kTestsHosts ? 1 : 5);
  const EngineOptions options{.zero_stage = 2, .pipeline = 2, .pipeline_cut = {4, 4}, .replay_every = 2};
  for (int rank = 0; rank < 6; ++rank) {
    for (const Passes passes : {Passes::kOwn, Passes::kReplay, Passes::kBoth}) {
      if (!selection.next()) continue;
      const auto found = find_on_mesh(3, options, rank, true, passes, Rest::kGarbage);
      ASSERT_TRUE(found);
      EXPECT_TRUE(found->is_decided);
      EXPECT_EQ(std::ranges::count(found->ranks, rank), 1) << "rank " << rank;
      for (const int named : found->ranks) EXPECT_EQ(named % 3, rank % 3);
    }
  }
}

TEST(Replay, NamesRanksOfTheTensorGroupAtFault) {
  const EngineOptions options{.zero_stage = 3, .tensor = 2, .gather = GatherMode::kCopy, .replay_every = 2};
  for (int rank = 0; rank < 6; ++rank) {
    const auto found = find_on_mesh(3, options, rank, true, Passes::kBoth);
    ASSERT_TRUE(found);
    for (const int named : found->ranks) EXPECT_EQ(named / 2, rank / 2) << "rank " << rank;
    EXPECT_EQ(std::ranges::count(found->ranks, rank), 1);
  }
}

TEST(Replay, FindsNoFaultBetweenReplays) {
  for (const int64_t step : {1, 3, 5}) EXPECT_FALSE(find(3, {.replay_every = 4}, {0, step, step, Passes::kBoth}));
}

TEST(Replay, NamesBothRanksWithoutAThird) {
  for (const int rank : {0, 1}) {
    std::string message;
    const auto found = find(2, {.zero_stage = 2, .replay_every = 1}, {rank, 3, 3, Passes::kOwn}, &message);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->first.ranks, (std::vector{0, 1}));
    EXPECT_FALSE(found->first.is_decided);
    EXPECT_EQ(found->second, 3);
    EXPECT_NE(message.find("no third rank could decide"), std::string::npos) << message;
  }
}

TEST(Replay, MessageNamesRankNodeHostUnitAndBlock) {
  std::string message;
  ASSERT_TRUE(find(4, {.zero_stage = 3, .replay_every = 2}, {2, 2, 2, Passes::kOwn}, &message));
  for (const char* part : {"step 2", "rank 2 (node 0, host ", "unit layer.1, block 2", "of layer.1.weight"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
}

TEST(Replay, AnEngineCannotBeUsedAfterAReplayError) {
  World::threads(
      3,
      [&](World& world) {
        EngineWithModel setup(world, {.options = {.replay_every = 1}});
        auto& [model, engine] = setup;
        EXPECT_THROW(run_step(engine, model, 1,
                              [&](const Work& work, int64_t step, SmallModel& of, Stream& compute) {
                                if (world.rank() == 1) inject({1, 1, 1, Passes::kOwn}, work, step, of, compute);
                              }),
                     ReplayError);
        EXPECT_THROW(static_cast<void>(engine.step()), FaultError);
        EXPECT_EQ(engine.step_count(), 0) << "the update was refused";
      },
      kTestedWorld);
}

/// A rank abandons a step during the replay, during its own passes, or before both. The step is skipped on all ranks,
/// and training continues.
TEST(Replay, AbandonedStepsAreNotCompared) {
  for (const int when : {0, 1, 2}) {
    World::threads(
        3,
        [&](World& world) {
          EngineWithModel setup(world, {.options = {.zero_stage = 3, .accumulate = 2, .replay_every = 2}});
          auto& [model, engine] = setup;
          for (int64_t step = 1; step <= 4; ++step) {
            const bool abandons = step == 2 && world.rank() == 1;
            if (abandons && when == 0) {
              engine.abandon();
            } else if (abandons) {
              try {
                while (const auto work = engine.next()) {
                  if (work->replayed == (when == 1)) throw std::runtime_error("injected");
                  run_use(engine, model, *work, samples(step, work->micro_batch, work->data_coordinate));
                }
              } catch (const std::runtime_error&) {
              }
            } else {
              run_step(engine, model, step);
            }
            EXPECT_EQ(engine.step().abandoned_by, step == 2 ? 1 : -1);
          }
          EXPECT_EQ(engine.step_count(), 4);
        },
        kTestedWorld);
  }
}

TEST(Replay, AutoChoosesTheSmallestNumberOfStepsWithTheShare) {
  World::threads(
      3,
      [&](World& world) {
        for (const double samples : {1.0, 4096.0}) {
          EngineOptions options{.zero_stage = 2, .accumulate = 4, .replay_every = kReplayAuto};
          options.cost.samples_per_micro_batch = samples;
          EngineWithModel setup(world, {.options = options});
          std::vector<Plan> stages = setup.engine.pipeline_plans();
          const int every = stages.front().policy.replay_every;
          ASSERT_GT(every, 1);
          EXPECT_LE(replay_share(stages, options.cost), kReplayShare);
          stages.front().policy.replay_every = every - 1;
          EXPECT_GT(replay_share(stages, options.cost), kReplayShare);
        }
      },
      kTestedWorld);
}

std::string refusal(int ranks, const EngineOptions& options) {
  return test::usage_error_message([&] {
    World::threads(
        ranks, [&](World& world) { EngineWithModel setup(world, {.options = options}); }, kTestedWorld);
  });
}

TEST(Replay, RefusesWhatItCannotCompare) {
  EXPECT_NE(refusal(1, {.replay_every = 1}).find("at least 2 data-parallel ranks"), std::string::npos);
  EXPECT_NE(refusal(2, {.update_in_backward = true, .clip = 0, .replay_every = 1}).find("update_in_backward"),
            std::string::npos);
  EXPECT_NE(refusal(2, {.replay_every = -2}).find("replay_every is -2"), std::string::npos);
  // The gradients of tied ends of several micro-batches are added in one buffer.
  EngineOptions tied{.accumulate = 2,
                     .pipeline = 2,
                     .pipeline_cut = {5, 4},
                     .accumulate_into = AccumulateInto::kFull,
                     .replay_every = 1};
  EXPECT_NE(test::usage_error_message([&] { train_on_mesh(2, tied, true); }).find("accumulate_into to shard"),
            std::string::npos);
  World::threads(
      2,
      [&](World& world) {
        EngineWithModel setup(world, {.options = {.replay_every = 1}});
        EXPECT_THROW(setup.engine.micro_batch(), UsageError);
        EXPECT_THROW(static_cast<void>(setup.engine.units()[0].forward()), UsageError);
        EXPECT_THROW(setup.engine.units()[0].skip(), UsageError);
      },
      kTestedWorld);
}

}  // namespace
}  // namespace aliquot
