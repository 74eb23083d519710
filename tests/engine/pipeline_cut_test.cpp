// Compares the cuts that the planner chooses for pipeline stages with all possible cuts.
#include "engine/choose/pipeline_cut.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>

#include "tests/engine/all_cuts.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

struct StageLoad {
  double seconds = 0;
  int64_t bytes = 0;
};

/// Returns the largest time and the largest memory of any pipeline stage. Adds seconds from the last use to the first,
/// as cut_pipeline() does.
StageLoad largest_load(const CutProblem& problem, const PipelineCut& cut) {
  StageLoad largest;
  auto next = problem.uses.size();
  for (std::size_t stage = cut.size(); stage-- > 0;) {
    StageLoad load{.bytes = problem.other_bytes[stage]};
    const auto end = next;
    for (int i = 0; i < cut[stage]; ++i) load.seconds += problem.uses[--next].seconds;
    int recomputed = 0;
    int64_t one_recomputed = 0;
    for (auto u = next; u < end; ++u) {
      const UseLoad& use = problem.uses[u];
      const bool recomputes = use.recomputable_bytes > 0 && ++recomputed <= problem.recompute;
      load.bytes += use.persistent_bytes +
                    (use.saved_bytes + (recomputes ? 0 : use.recomputable_bytes)) * problem.in_flight[stage];
      if (recomputes) one_recomputed = std::max(one_recomputed, use.recomputable_bytes);
    }
    load.bytes += one_recomputed;
    largest = {std::max(largest.seconds, load.seconds), std::max(largest.bytes, load.bytes)};
  }
  return largest;
}

std::vector<UseLoad> random_uses(std::mt19937& random, int count) {
  std::vector<UseLoad> uses(static_cast<std::size_t>(count));
  for (UseLoad& use : uses) {
    use.seconds = static_cast<double>(random() % 8) * 0.1;
    use.persistent_bytes = static_cast<int64_t>(random() % 100);
    use.saved_bytes = static_cast<int64_t>(random() % 20);
    if (random() % 4 > 0) use.recomputable_bytes = static_cast<int64_t>(random() % 40);
  }
  return uses;
}

TEST(PipelineCut, IsTheBestOfAllCuts) {
  std::mt19937 random(1);
  int within_budget = 0, too_large = 0;
  for (int trial = 0; trial < 500; ++trial) {
    const int stages = 1 + static_cast<int>(random() % 4), count = stages + static_cast<int>(random() % 6);
    const auto uses = random_uses(random, count);
    CutProblem problem{.uses = uses, .in_flight = {}};
    for (int stage = 0; stage < stages; ++stage) {
      problem.in_flight.push_back(stages - stage);
      problem.other_bytes.push_back(static_cast<int64_t>(random() % 50));
    }
    problem.recompute = trial % 3 == 0 ? kRecomputeAll : static_cast<int>(random() % 3);
    if (trial % 2 == 0) problem.budget_bytes = static_cast<int64_t>(random() % 400);
    double seconds = std::numeric_limits<double>::infinity();
    int64_t bytes = std::numeric_limits<int64_t>::max();
    for (const PipelineCut& cut : testing::all_cuts(count, stages)) {
      const StageLoad load = largest_load(problem, cut);
      bytes = std::min(bytes, load.bytes);
      if (!problem.budget_bytes || load.bytes <= *problem.budget_bytes) seconds = std::min(seconds, load.seconds);
    }
    const PipelineCut cut = cut_pipeline(problem);
    ASSERT_EQ(std::ranges::count_if(cut, [](int uses_of_stage) { return uses_of_stage < 1; }), 0);
    ASSERT_EQ(std::accumulate(cut.begin(), cut.end(), 0), count);
    if (std::isinf(seconds)) {
      ++too_large;
      EXPECT_EQ(largest_load(problem, cut).bytes, bytes) << "no cut fits, so the smallest one is expected";
      continue;
    }
    ++within_budget;
    EXPECT_EQ(largest_load(problem, cut).seconds, seconds);
    EXPECT_LE(largest_load(problem, cut).bytes, problem.budget_bytes.value_or(bytes + (int64_t{1} << 40)));
  }
  EXPECT_GT(within_budget, 100);
  EXPECT_GT(too_large, 50);
}

TEST(PipelineCut, AnExpensiveHeadGetsFewerBlocks) {
  std::vector<UseLoad> uses(12, {.seconds = 1});
  uses.front().seconds = 0.1;  // embedding
  uses.back().seconds = 4;     // head
  EXPECT_EQ(cut_pipeline({.uses = uses, .in_flight = {2, 1}}), (PipelineCut{8, 4}));
}

TEST(PipelineCut, EachStageNeedsAtLeastOneUse) {
  const std::vector<UseLoad> uses(3, {.seconds = 1});
  EXPECT_EQ(cut_pipeline({.uses = uses, .in_flight = {1, 1, 1}}), (PipelineCut{1, 1, 1}));
  EXPECT_EQ(test::usage_error_message([&] {
              cut_pipeline({.uses = uses, .in_flight = {1, 1, 1, 1}});
            }),
            "there are 4 pipeline stages: expected at most 3, the number of parts into which the model can be divided");
}

TEST(PipelineCut, TenThousandUsesTakeLittleTime) {
  std::mt19937 random(2);
  const auto uses = random_uses(random, 10000);
  const PipelineCut cut = cut_pipeline({.uses = uses, .in_flight = std::vector<int>(16, 16)});
  EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), 0), 10000);
}

ModelSpec chain_of(int uses) { return testing::chain(uses, 256); }

/// The loads of pipeline stages and of virtual stages are about equal, even if no cut makes them exactly equal.
TEST(PipelineCut, BalancesPipelineStagesAndVirtualStages) {
  const auto cut = [](int uses, int pipeline, int virtual_stages, double head) {
    CostModel cost = CostModel::typical_host();
    cost.uses.assign(static_cast<std::size_t>(uses), {.forward_seconds = 1, .backward_seconds = 2});
    cost.uses.back() = {.forward_seconds = head, .backward_seconds = 2 * head};
    return cut_pipeline(
        chain_of(uses),
        {.pipeline = pipeline, .pipeline_schedule = PipelineSchedule::kInterleaved, .virtual_stages = virtual_stages},
        cost);
  };
  EXPECT_EQ(cut(8, 2, 2, 1), (PipelineCut{2, 2, 2, 2}));
  const PipelineCut ten = cut(10, 2, 2, 1);
  EXPECT_EQ(ten[0] + ten[2], 5);
  EXPECT_LE(std::ranges::max(ten), 3);
  const PipelineCut more = cut(26, 4, 2, 1);
  for (std::size_t s = 0; s < 4; ++s) EXPECT_LE(more[s] + more[s + 4], 7);
  EXPECT_LE(std::ranges::max(more), 4);
  EXPECT_LE(cut(14, 2, 2, 4)[3], 2) << "the head takes the time of four uses";
}

TEST(PipelineCut, RefusesNumbersOfVirtualStages) {
  const auto refusal = [](const Policy& policy) {
    return test::usage_error_message([&] { cut_pipeline(chain_of(5), policy, CostModel::typical_host()); });
  };
  using enum PipelineSchedule;
  EXPECT_EQ(refusal({.pipeline = 65536, .pipeline_schedule = kInterleaved, .virtual_stages = 65536}),
            "EngineOptions::pipeline is 65536 and EngineOptions::virtual_stages is 65536: expected a product of at "
            "most 5, the "
            "number of parts into which the model can be divided");
  EXPECT_EQ(refusal({.pipeline = 2, .pipeline_schedule = kInterleaved, .virtual_stages = -1}),
            "EngineOptions::virtual_stages is -1: expected 0 (the default) or a positive number");
  EXPECT_EQ(refusal({.pipeline = 2, .pipeline_schedule = kInterleaved, .virtual_stages = 1}),
            "EngineOptions::virtual_stages is 1, but EngineOptions::pipeline_schedule is kInterleaved: expected 2 or "
            "more");
  EXPECT_EQ(refusal({.pipeline = 2, .pipeline_schedule = k1F1B, .virtual_stages = 2}),
            "EngineOptions::virtual_stages is 2: expected 1, because EngineOptions::pipeline_schedule is not "
            "kInterleaved and EngineOptions::pass_order is empty");
  EXPECT_EQ(refusal({.pipeline = 1, .pipeline_schedule = kInterleaved, .virtual_stages = 2}),
            "EngineOptions::virtual_stages is 2: expected 1, because EngineOptions::pipeline is 1");
}

}  // namespace
}  // namespace aliquot
