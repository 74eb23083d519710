// Measures the CPU time of planning, proof and simulation of pipelines with many micro-batches. The limits are far
// above the time on an idle machine, and far below the time of an algorithm with quadratic complexity.

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>

#include "engine/cost/simulate.h"
#include "engine/proof/validate.h"
#include "tests/engine/plan/random_plan.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test_time_scale.h"

namespace aliquot {
namespace {

struct Pipeline {
  int stages, uses_per_stage, micro_batches;
  bool tied = false;  // the first and the last use share a unit
};

/// The arguments of plan_pipeline().
struct PipelineCase {
  ModelSpec model;
  Policy policy;
  Topology world;
};

/// Each pipeline stage has one rank.
PipelineCase case_of(const Pipeline& pipeline) {
  const int uses = pipeline.stages * pipeline.uses_per_stage, units = uses - (pipeline.tied ? 1 : 0);
  PipelineCase made{.model = {},
                    .policy = {.zero_stage = 1, .micro_batch_count = pipeline.micro_batches},
                    .world = testing::hosts(pipeline.stages, 8)};
  for (int u = 0; u < units; ++u) {
    made.model.units.push_back(
        {fmt::format("h.{}", u), {{.tensor = {fmt::format("h.{}.w", u), {4096}}}}, GradientMode::kAdd});
  }
  for (int use = 0; use < uses; ++use) {
    made.model.uses.push_back({(use + units - (pipeline.tied ? 1 : 0)) % units});
    made.model.activations.uses.push_back({1024, 4096, 512, true});
  }
  made.model.activations.backward_bytes = 1024;
  made.policy.pipeline = pipeline.stages;
  made.policy.pipeline_cut.assign(static_cast<std::size_t>(pipeline.stages), pipeline.uses_per_stage);
  made.policy.accumulate_into = AccumulateInto::kShard;  // each micro-batch of the tied unit has gradients of its own
  return made;
}

struct Seconds {
  double planning = 0, proof = 0, simulation = 0;
};

/// Measures each part with reference_cpu_seconds(). Without a limit, each part runs once.
Seconds measure(const Pipeline& pipeline, double limit = std::numeric_limits<double>::infinity()) {
  const PipelineCase made = case_of(pipeline);
  std::vector<Plan> stages;
  Seconds seconds;
  seconds.planning =
      test::reference_cpu_seconds(limit, [&] { stages = plan_pipeline(made.model, made.policy, made.world); });
  seconds.proof = test::reference_cpu_seconds(limit, [&] { EXPECT_NO_THROW(prove(stages)); });
  seconds.simulation = test::reference_cpu_seconds(limit, [&] { simulate(stages, CostModel::typical_gpu()); });
  EXPECT_EQ(stages.front().stage.tied_ends, pipeline.tied);
  std::size_t operations = 0;
  for (const Plan& stage : stages) operations += stage.schedule.operations.size();
  fmt::print(
      "{} pipeline stages, {} uses, {} micro-batches{}, {} operations: planned in {:.3f} s, proved in {:.3f} s, "
      "simulated in {:.3f} s\n",
      pipeline.stages, made.model.uses.size(), pipeline.micro_batches, pipeline.tied ? ", tied" : "", operations,
      seconds.planning, seconds.proof, seconds.simulation);
  return seconds;
}

void expect_within(double limit_seconds, const Pipeline& pipeline) {
  const double limit = limit_seconds * test::test_time_scale();
  const Seconds seconds = measure(pipeline, limit);
  EXPECT_LT(seconds.planning, limit);
  EXPECT_LT(seconds.proof, limit);
  EXPECT_LT(seconds.simulation, limit);
}

TEST(PipelineCost, FortyEightStagesWithManyMicroBatchesTakeSeconds) {
  expect_within(4, {.stages = 48, .uses_per_stage = 1, .micro_batches = 512});
  expect_within(4, {.stages = 48, .uses_per_stage = 2, .micro_batches = 512, .tied = true});
}

TEST(PipelineCost, ManyStagesTakeSeconds) {
  expect_within(8, {.stages = 256, .uses_per_stage = 1, .micro_batches = 256});
}

TEST(PipelineCost, ATiedModelWithManyMicroBatchesTakesSeconds) {
  expect_within(3, {.stages = 4, .uses_per_stage = 2, .micro_batches = 8192, .tied = true});
}

/// Returns the shorter of the two times of each phase.
Seconds fastest(const Seconds& a, const Seconds& b) {
  return {std::min(a.planning, b.planning), std::min(a.proof, b.proof), std::min(a.simulation, b.simulation)};
}

/// For eight times as many micro-batches, a linear algorithm takes 8 times as long, one that takes time n^1.4 takes
/// 18 times as long, and a quadratic one 64 times as long.
TEST(PipelineCost, GrowsInProportionToMicroBatches) {
  constexpr double kMostGrowth = 18;
  for (const bool tied : {false, true}) {
    std::array<Seconds, 2> times;
    for (int attempt = 0; attempt < 4; ++attempt) {
      for (const std::size_t i : {0, 1}) {
        const Seconds now =
            measure({.stages = 4, .uses_per_stage = 2, .micro_batches = i == 0 ? 256 : 2048, .tied = tied});
        times[i] = attempt == 0 ? now : fastest(times[i], now);
      }
    }
    EXPECT_LT(times[1].planning / times[0].planning, kMostGrowth);
    EXPECT_LT(times[1].proof / times[0].proof, kMostGrowth);
    EXPECT_LT(times[1].simulation / times[0].simulation, kMostGrowth);
  }
}

}  // namespace
}  // namespace aliquot
