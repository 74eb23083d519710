#pragma once
// Training of the model in blocks_model.h, pass by pass, and the results that tests compare.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <vector>

#include "engine/plan/pipeline.h"
#include "tests/engine/blocks_model.h"

namespace aliquot::testing_model {

struct Trained {
  std::vector<double> losses, norms;
  std::vector<float> parameters;
  friend bool operator==(const Trained&, const Trained&) = default;
};

/// Runs one step through Engine::next(), and expects the passes of this stage in the order of the plan. All ranks with
/// the same data coordinate must use the same samples.
inline void run_step(EngineWithBlocks& setup, double first_sample) {
  auto& [blocks, engine] = setup;
  const auto& stage = engine.plan().stage;
  const PassOrder order = pass_order_of(engine.plan().policy, stage);
  for (const auto& [virtual_stage, pass, micro_batch] : order[static_cast<std::size_t>(stage.index)]) {
    const double sample = first_sample + 0.1 * micro_batch;
    const bool forward = pass == PassKind::kForward;
    const VirtualStage& run = stage.run(virtual_stage);
    for (int i = 0; i < run.end_use - run.first_use; ++i) {
      blocks.select_sample(engine, sample);
      const auto work = engine.next();
      ASSERT_TRUE(work);
      EXPECT_EQ(work->kind, forward ? UseKind::kForward : UseKind::kBackward);
      EXPECT_EQ(work->micro_batch, micro_batch);
      EXPECT_EQ(work->use, forward ? run.first_use + i : run.last_use() - i);
      EXPECT_EQ(std::vector(work->units.begin(), work->units.end()), std::vector{blocks.unit_of(work->use)});
      if (forward)
        blocks.forward(engine, work->memory(), sample);
      else
        blocks.backward(engine, work->memory());
    }
  }
  EXPECT_FALSE(engine.next());
}

/// Trains three steps on `data_ranks` ranks per pipeline stage. Returns the results of the first rank of the last
/// stage. Expects that the ledger of every rank equals the account.
inline Trained train_by_passes(int data_ranks, const EngineOptions& options, const WorldOptions& world_options = kHosts,
                               bool tied = false) {
  Trained trained;
  World::threads(
      data_ranks * options.pipeline,
      [&](World& world) {
        EngineWithBlocks setup(world, options, tied);
        auto& [blocks, engine] = setup;
        Trained own;
        for (int step = 0; step < 3; ++step) {
          run_step(setup, step + 0.01 * (world.rank() % data_ranks));
          const StepReport report = engine.step();
          engine.compute_stream().synchronize();
          own.losses.push_back(blocks.loss), own.norms.push_back(report.gradient_norm);
        }
        EXPECT_EQ(world.device().ledger().peak(), account(engine.plan().schedule).peak);
        for (int i = 0; i < blocks.unit_count(); ++i) {
          for (const char* name : {"a", "b"}) {
            const auto full = engine.read(fmt::format("h.{}.{}", i, name));
            own.parameters.insert(own.parameters.end(), full.begin(), full.end());
          }
        }
        if (world.rank() == data_ranks * (options.pipeline - 1)) trained = own;
      },
      world_options);
  return trained;
}

}  // namespace aliquot::testing_model
