// Cuts of models into pipeline stages, compared with all possible cuts.
#include "engine/choose/pipeline_cut.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

struct StageLoad {
  double seconds = 0;
  int64_t bytes = 0;
};

/// Returns the maxima over all pipeline stages. Adds seconds from the last use to the first, as cut_pipeline() does.
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

std::vector<PipelineCut> all_cuts(int uses, int stages) {
  if (stages == 1) return {{uses}};
  std::vector<PipelineCut> cuts;
  for (int first = 1; first <= uses - stages + 1; ++first) {
    for (PipelineCut cut : all_cuts(uses - first, stages - 1)) {
      cut.insert(cut.begin(), first);
      cuts.push_back(std::move(cut));
    }
  }
  return cuts;
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
    for (const PipelineCut& cut : all_cuts(count, stages)) {
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
            "4 pipeline stages, but the model has only 3 uses: expected at most one pipeline stage per use");
}

TEST(PipelineCut, TenThousandUsesTakeLittleTime) {
  std::mt19937 random(2);
  const auto uses = random_uses(random, 10000);
  const PipelineCut cut = cut_pipeline({.uses = uses, .in_flight = std::vector<int>(16, 16)});
  EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), 0), 10000);
}

}  // namespace
}  // namespace aliquot
