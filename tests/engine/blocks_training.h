#pragma once
// Training of the model in blocks_model.h, pass by pass, and the results that tests compare.

#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/options/enum_names.h"
#include "engine/plan/pipeline.h"
#include "tests/engine/blocks_model.h"
#include "tests/support/all_cases.h"

namespace aliquot::testing_model {

struct Trained {
  std::vector<double> losses, norms;
  std::vector<float> parameters;
  friend bool operator==(const Trained&, const Trained&) = default;
};

/// The kind of the work of one use in a pass, or nullopt if the pass has none.
inline std::optional<UseKind> kind_of(PassKind pass, bool split) {
  switch (pass) {
    case PassKind::kForward: return UseKind::kForward;
    case PassKind::kBackward: return UseKind::kBackward;
    case PassKind::kBackwardInput: return split ? UseKind::kBackwardInput : UseKind::kBackward;
    case PassKind::kBackwardWeights: break;
  }
  return split ? std::optional(UseKind::kBackwardWeights) : std::nullopt;
}

/// Runs the model code of a use that Engine::next() returned.
inline void run_work(EngineWithBlocks& setup, const Work& work, double sample) {
  auto& [blocks, engine] = setup;
  switch (work.kind) {
    case UseKind::kBackward: return blocks.backward(engine, work.memory());
    case UseKind::kBackwardInput:
    case UseKind::kBackwardWeights: return blocks.backward_part(engine, work.kind, work.memory());
    default: return blocks.forward(engine, work.memory(), sample);
  }
}

/// Runs one step through Engine::next(), and expects the passes of this pipeline stage in the order of the plan. Ranks
/// that have the same position on their pipeline stages must use the same samples.
inline void run_step(EngineWithBlocks& setup, double first_sample) {
  auto& [blocks, engine] = setup;
  const auto& stage = engine.plan().stage;
  const PassOrder order = pass_order_of(engine.plan().policy, stage);
  for (const auto& [virtual_stage, pass, micro_batch] : order[static_cast<std::size_t>(stage.index)]) {
    const double sample = first_sample + 0.1 * micro_batch;
    const bool forward = pass == PassKind::kForward;
    const VirtualStage& run = stage.run(virtual_stage);
    for (int i = 0; i < run.end_use - run.first_use; ++i) {
      const int use = forward ? run.first_use + i : run.last_use() - i;
      const auto kind = kind_of(pass, blocks.splits(use));
      if (!kind) continue;
      blocks.select_sample(engine, sample);
      const auto work = engine.next();
      ASSERT_TRUE(work);
      EXPECT_EQ(work->kind, *kind);
      EXPECT_EQ(work->micro_batch, micro_batch);
      EXPECT_EQ(work->use, use);
      EXPECT_EQ(std::vector(work->units.begin(), work->units.end()), std::vector{blocks.unit_of(work->use)});
      run_work(setup, *work, sample);
    }
  }
  EXPECT_FALSE(engine.next());
}

/// Returns all parameters of the model, in fp32. All ranks must call it.
inline std::vector<float> read_blocks(EngineWithBlocks& setup) {
  std::vector<float> parameters;
  for (int i = 0; i < setup.blocks.unit_count(); ++i) {
    for (const char* name : {"a", "b"}) {
      const auto full = setup.engine.read(fmt::format("h.{}.{}", i, name));
      parameters.insert(parameters.end(), full.begin(), full.end());
    }
  }
  return parameters;
}

/// Trains three steps on `data_ranks` ranks per pipeline stage. Returns the results of the first rank of the last
/// pipeline stage. Expects that the measured peak memory of every rank equals the planned peak.
inline Trained train_by_passes(int data_ranks, const EngineOptions& options, const WorldOptions& world_options = kHosts,
                               bool tied = false, Pointers pointers = Pointers::kOwn) {
  Trained trained;
  World::threads(
      data_ranks * options.pipeline,
      [&](World& world) {
        EngineWithBlocks setup(world, options, tied, -1, pointers);
        auto& [blocks, engine] = setup;
        Trained own;
        for (int step = 0; step < 3; ++step) {
          run_step(setup, step + 0.01 * (world.rank() % data_ranks));
          const StepReport report = engine.step();
          engine.compute_stream().synchronize();
          own.losses.push_back(blocks.loss), own.norms.push_back(report.gradient_norm);
        }
        EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
        own.parameters = read_blocks(setup);
        if (world.rank() == data_ranks * (options.pipeline - 1)) trained = own;
      },
      world_options);
  return trained;
}

inline std::string describe(const EngineOptions& options) {
  return fmt::format("{} stages, {}, ZeRO stage {}, {} micro-batches", options.pipeline,
                     enum_name(kPipelineScheduleWords, options.pipeline_schedule), options.zero_stage,
                     options.accumulate);
}

/// Returns a cut of the model's five uses into `stages` pipeline stages. In a tied model, the cut counts the first use
/// as part of the first pipeline stage, but the last pipeline stage runs it.
inline std::vector<int> cut_of(int stages, bool tied) {
  const std::vector<int> cuts[] = {{}, {2, 3}, {1, 3, 1}, {1, 2, 1, 1}, {1, 1, 1, 1, 1}};
  const std::vector<int> tied_cuts[] = {{}, {3, 2}, {2, 2, 1}, {2, 1, 1, 1}};
  return (tied ? tied_cuts : cuts)[stages - 1];
}

/// Calls `with` for 1F1B, GPipe and zero bubble and, with 2 pipeline stages, for the interleaved order. The interleaved
/// order needs two uses for each pipeline stage.
template <typename With>
void for_schedules(EngineOptions options, int stages, bool tied, const With& with) {
  options.pipeline = stages;
  options.pipeline_cut = cut_of(stages, tied);
  for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kGpipe, PipelineSchedule::kZeroBubble}) {
    options.pipeline_schedule = schedule;
    with(options);
  }
  if (stages != 2) return;
  options.pipeline_schedule = PipelineSchedule::kInterleaved;
  options.pipeline_cut = cut_of(4, tied);
  with(options);
}

/// Expects that 2, 3 and 4 pipeline stages give the results of one pipeline stage. Tries the orders of passes of
/// for_schedules(), all ZeRO stages, and 1 and 2 ranks per pipeline stage. With p pipeline stages, tries 1, p, 2 p + 1
/// and 4 p micro-batches. Compares every third case, or all cases in the long suite. Returns the number of comparisons.
inline int expect_one_result(bool tied) {
  int cases = 0;
  test::CaseSelection selection(3);
  for (const int zero_stage : {0, 1, 2, 3}) {
    for (const int data_ranks : {1, 2}) {
      std::map<int, Trained> alone;  // results on one pipeline stage, by number of micro-batches
      for (const int stages : {2, 3, 4}) {
        for (const int micro_batches : {1, stages, 2 * stages + 1, 4 * stages}) {
          const EngineOptions options{
              .zero_stage = zero_stage, .accumulate = micro_batches, .accumulate_into = AccumulateInto::kShard};
          auto& reference = alone[micro_batches];
          if (reference.losses.empty()) reference = train_by_passes(data_ranks, options, kHosts, tied);
          EXPECT_TRUE(std::isfinite(reference.norms.back()) && reference.losses.back() > 0);
          for_schedules(options, stages, tied, [&](const EngineOptions& pipelined) {
            if (!selection.next()) return;
            ++cases;
            EXPECT_TRUE(train_by_passes(data_ranks, pipelined, kHosts, tied) == reference) << describe(pipelined);
          });
        }
      }
    }
  }
  return cases;
}

}  // namespace aliquot::testing_model
