// Tests abandoned steps, skipped uses, evaluations between steps, and frozen parameters on pipelines. Results equal
// those on one pipeline stage.
#include <chrono>
#include <cstring>
#include <gtest/gtest.h>
#include <span>
#include <stdexcept>

#include "tests/engine/blocks_training.h"
#include "tests/support/all_cases.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using namespace testing_model;

/// Calls `with` for 2 and 4 pipeline stages, with the orders of passes of for_schedules(). In tied models, the first
/// and the last use share a unit.
template <typename With>
void for_pipelines(const EngineOptions& options, const With& with) {
  for (const bool tied : {false, true}) {
    for (const int stages : {2, 4})
      for_schedules(options, stages, tied, [&](const EngineOptions& each) { with(each, tied); });
  }
}

std::string describe(const EngineOptions& options, bool tied) {
  return testing_model::describe(options) + (tied ? ", tied" : "");
}

// Abandoned steps -----------------------------------------------------------------------------------------------------

enum class Where { kInAUse, kBetweenUses };

/// Runs `uses` uses of a step, and then throws, as a model or a loader of samples may do.
void run_and_throw(EngineWithBlocks& setup, int uses, Where where) {
  auto& [blocks, engine] = setup;
  try {
    for (int i = 0;; ++i) {
      if (where == Where::kBetweenUses && i == uses) throw std::runtime_error("a bad sample");
      const auto work = engine.next();
      ASSERT_TRUE(work);
      if (i == uses) throw std::runtime_error("a bad use");
      run_work(setup, *work, 0.5);
    }
  } catch (const std::runtime_error&) {
    if (where == Where::kBetweenUses) engine.abandon();
  }
}

/// The rank `thrower` abandons the second step, and then all ranks repeat that step. Returns the same kind of results
/// as train_by_passes(). With `sums_losses`, the ranks sum losses before they end the abandoned step.
Trained train_with_an_abandoned_step(const EngineOptions& options, bool tied, int thrower, int uses, Where where,
                                     bool sums_losses) {
  Trained trained;
  World::threads(
      options.pipeline,
      [&](World& world) {
        EngineWithBlocks setup(world, options, tied);
        auto& [blocks, engine] = setup;
        Trained own;
        for (int step = 0; step < 3; ++step) {
          if (step == 1) {
            if (world.rank() == thrower)
              run_and_throw(setup, uses, where);
            else
              run_step(setup, step);
            double sum = 0;
            if (sums_losses) engine.sum_losses({&sum, 1});
            const StepReport report = engine.step();
            EXPECT_TRUE(report.skipped);
            EXPECT_EQ(report.abandoned_by, thrower);
          }
          run_step(setup, step);
          const StepReport report = engine.step();
          EXPECT_FALSE(report.skipped);
          engine.compute_stream().synchronize();
          own.losses.push_back(blocks.loss), own.norms.push_back(report.gradient_norm);
        }
        for (int i = 0; i < blocks.unit_count(); ++i) {
          for (const char* name : {"a", "b"}) {
            const auto full = engine.read(fmt::format("h.{}.{}", i, name));
            own.parameters.insert(own.parameters.end(), full.begin(), full.end());
          }
        }
        if (world.rank() == options.pipeline - 1) trained = own;
      },
      kHosts);
  return trained;
}

TEST(PipelineSteps, AStepThatAnyStageAbandonsIsSkippedOnAllStages) {
  for (const int zero_stage : {1, 3}) {
    const EngineOptions common{
        .zero_stage = zero_stage, .accumulate = 3, .accumulate_into = AccumulateInto::kShard, .recompute = 1};
    test::CaseSelection selection(3, zero_stage == 1 ? 0 : 1);
    for_pipelines(common, [&](const EngineOptions& options, bool tied) {
      const Trained reference = train_by_passes(1, options, kHosts, tied);
      for (int thrower = 0; thrower < options.pipeline; ++thrower) {
        for (const auto& [uses, where] : {std::pair(0, Where::kBetweenUses),
                                          {0, Where::kInAUse},
                                          {1, Where::kBetweenUses},
                                          {2, Where::kInAUse},
                                          {5, Where::kInAUse}}) {
          if (!selection.next()) continue;
          EXPECT_TRUE(train_with_an_abandoned_step(options, tied, thrower, uses, where, uses % 2 == 0) == reference)
              << describe(options, tied) << ", rank " << thrower << " throws after " << uses << " uses";
        }
      }
    });
  }
}

/// Units are already updated, so the step cannot be skipped. All pipeline stages stop
/// immediately, not at the deadline.
TEST(PipelineSteps, AbandoningAnUpdateInBackwardEndsTheRunOnAllStages) {
  for (const int thrower : {0, 1}) {
    const auto began = std::chrono::steady_clock::now();
    const auto body = [&](World& world) {
      EngineWithBlocks setup(world, {.accumulate = 2,
                                     .pipeline = 2,
                                     .pipeline_cut = testing_model::cut_of(2, false),
                                     .gather = GatherMode::kCopy,
                                     .update_in_backward = true,
                                     .clip = 0});
      if (world.rank() == thrower)
        run_and_throw(setup, 5, Where::kInAUse);
      else
        run_step(setup, 0);
      (void)setup.engine.step();
    };
    EXPECT_THROW(World::threads(2, body, {.device = DeviceChoice::kHost, .timeout_seconds = 60}), FaultError);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  }
}

// Skipped uses --------------------------------------------------------------------------------------------------------

/// Runs a step in which this pipeline stage computes nothing and sends zeros. With `skips`, it skips each use that
/// skip() accepts, otherwise it opens all uses. skip() must refuse exactly the uses whose result another pipeline stage
/// receives, and the first part of a split backward.
void send_zeros(EngineWithBlocks& setup, bool skips, const std::string& which) {
  auto& [blocks, engine] = setup;
  const auto& stage = engine.plan().stage;
  const PassOrder order = pass_order_of(engine.plan().policy, stage);
  for (const auto& [virtual_stage, pass, micro_batch] : order[static_cast<std::size_t>(stage.index)]) {
    const bool forward = pass == PassKind::kForward;
    const VirtualStage& run = stage.run(virtual_stage);
    if (forward && run.first_use == stage.first_use()) engine.micro_batch();
    for (int i = 0; i < run.end_use - run.first_use; ++i) {
      const int use = forward ? run.first_use + i : run.last_use() - i;
      const auto kind = kind_of(pass, blocks.splits(use));
      if (!kind) continue;
      const bool sends = i + 1 == run.end_use - run.first_use && kind != UseKind::kBackwardWeights &&
                         !(forward ? stage.is_last(run) : run.is_first());
      const UnitId unit = blocks.unit_of(use);
      if (skips) {
        const std::string refusal = test::usage_error_message([&] { engine.skip(std::span(&unit, 1)); });
        EXPECT_EQ(refusal.find("another pipeline stage receives its result") != std::string::npos, sends)
            << which << ", use " << use << ": " << refusal;
        const bool is_first_part = kind == UseKind::kBackwardInput;
        EXPECT_EQ(refusal.find("the second part of this backward reads its result") != std::string::npos,
                  is_first_part && !sends)
            << which << ", use " << use << ": " << refusal;
        if (!sends && !is_first_part) continue;
      }
      const auto work = engine.next();
      ASSERT_TRUE(work && work->use == use);
      if (!sends) continue;
      void* const result = forward ? work->memory().output : work->memory().backward;
      engine.compute_stream().run([result] { std::memset(result, 0, kStreamBytes); });
    }
  }
}

/// In the second of three steps, pipeline stage 0 sends zeros, and the other pipeline stages compute. Returns the
/// gradient norm of each step.
std::vector<double> norms_with_zeros(const EngineOptions& options, bool tied, bool skips) {
  std::vector<double> norms;
  World::threads(
      options.pipeline,
      [&](World& world) {
        EngineWithBlocks setup(world, options, tied);
        for (int step = 0; step < 3; ++step) {
          if (step == 1 && world.rank() == 0)
            send_zeros(setup, skips, describe(options, tied));
          else
            run_step(setup, step);
          const double norm = setup.engine.step().gradient_norm;
          if (world.rank() == 0) norms.push_back(norm);
        }
      },
      kHosts);
  return norms;
}

/// The later pipeline stages must receive zeros from pipeline stage 0, not old data. So the results must equal those of
/// a run that opens all uses and sends zeros.
TEST(PipelineSteps, SkippedUsesSendNoOldData) {
  for_pipelines({.accumulate = 3}, [](const EngineOptions& options, bool tied) {
    const std::vector<double> skipped = norms_with_zeros(options, tied, true);
    EXPECT_EQ(skipped, norms_with_zeros(options, tied, false)) << describe(options, tied);
    ASSERT_EQ(skipped.size(), 3U);
    EXPECT_NE(skipped[1], skipped[0]);
  });
}

/// If all pipeline stages skip their uses, all gradients are zero.
TEST(PipelineSteps, SkippedUsesContributeZeros) {
  for_pipelines({.accumulate = 3}, [](const EngineOptions& options, bool tied) {
    World::threads(
        options.pipeline,
        [&](World& world) {
          EngineWithBlocks setup(world, options, tied);
          run_step(setup, 0);
          EXPECT_GT(setup.engine.step().gradient_norm, 0);
          send_zeros(setup, true, describe(options, tied));
          EXPECT_EQ(setup.engine.step().gradient_norm, 0);
        },
        kHosts);
  });
}

// Evaluations and frozen parameters -----------------------------------------------------------------------------------

double evaluate(EngineWithBlocks& setup, double sample) {
  auto& [blocks, engine] = setup;
  while (const auto work = engine.next_evaluation()) blocks.forward(engine, work->memory(), sample);
  engine.compute_stream().synchronize();
  return blocks.loss;
}

void set_trainable(EngineWithBlocks& setup, int unit, bool trainable) {
  setup.engine.set_trainable(fmt::format("h.{}", unit), trainable);
  setup.blocks.frozen[unit] = !trainable;
}

/// Trains six steps with an evaluation after each. Units are frozen and unfrozen between steps. Returns the losses of
/// evaluations in place of those of training.
Trained train_with_changes(int data_ranks, const EngineOptions& options, bool tied) {
  Trained trained;
  World::threads(
      data_ranks * options.pipeline,
      [&](World& world) {
        EngineWithBlocks setup(world, options, tied);
        Trained own;
        for (int step = 0; step < 6; ++step) {
          if (step == 1) set_trainable(setup, 0, false);
          if (step == 2) set_trainable(setup, 3, false);
          if (step == 3) set_trainable(setup, 0, true);
          if (step == 4) set_trainable(setup, 1, false), set_trainable(setup, 2, false);
          if (step == 5) set_trainable(setup, 3, true);
          run_step(setup, step + 0.01 * (world.rank() % data_ranks));
          own.norms.push_back(setup.engine.step().gradient_norm);
          own.losses.push_back(evaluate(setup, 0.5 + 0.01 * (world.rank() % data_ranks)));
        }
        own.parameters = setup.engine.read("h.0.a");
        if (world.rank() == data_ranks * (options.pipeline - 1)) trained = own;
      },
      kHosts);
  return trained;
}

TEST(PipelineSteps, EvaluationsAndFrozenUnitsGiveTheSameResultsWithAPipeline) {
  const EngineOptions all[] = {{.zero_stage = 0},
                               {.zero_stage = 2, .optimizer = AdamW8bit{}},
                               {.zero_stage = 3, .gather = GatherMode::kCopy, .optimizer = Muon{}},
                               {.zero_stage = 3, .offload_state = Offload::kHost, .check = true}};
  test::CaseSelection selection(3);
  for (EngineOptions common : all) {
    common.accumulate = 3;
    common.accumulate_into = AccumulateInto::kShard;
    const Trained alone[] = {train_with_changes(2, common, false), train_with_changes(2, common, true)};
    ASSERT_EQ(alone[0].losses.size(), 6u);
    EXPECT_NE(alone[0].losses[4], alone[0].losses[5]);
    for_pipelines(common, [&](const EngineOptions& options, bool tied) {
      if (!selection.next()) return;
      EXPECT_TRUE(train_with_changes(2, options, tied) == alone[tied ? 1 : 0]) << describe(options, tied);
    });
  }
}

/// A pipeline stage whose units are all frozen still sends gradients of activations to the previous pipeline stage. It
/// has no optimizer state to offload. On every pipeline stage, planned memory equals the memory in the ledger.
TEST(PipelineSteps, UnitsFrozenFromTheStartUseThePlannedMemory) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    const EngineOptions common{.zero_stage = zero_stage,
                               .accumulate = 2,
                               .offload_state = zero_stage % 2 == 1 ? Offload::kHost : Offload::kNone};
    test::CaseSelection selection(2, zero_stage / 2);
    for_pipelines(common, [&](const EngineOptions& options, bool tied) {
      for (const int frozen : {0, 1, 2}) {
        if (!selection.next()) continue;
        World::threads(
            2 * options.pipeline,
            [&](World& world) {
              EngineWithBlocks setup(world, options, tied, frozen);
              const auto before = setup.engine.read(fmt::format("h.{}.a", frozen));
              for (int step = 0; step < 2; ++step) {
                run_step(setup, step);
                EXPECT_FALSE(setup.engine.step().skipped);
              }
              EXPECT_EQ(world.device().ledger().peak(), account(setup.engine.plan().schedule).peak)
                  << describe(options, tied) << ", h." << frozen << " is frozen";
              EXPECT_TRUE(setup.engine.read(fmt::format("h.{}.a", frozen)) == before);
            },
            kHosts);
      }
    });
  }
}

}  // namespace
}  // namespace aliquot
