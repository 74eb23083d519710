// Tests that the planner chooses the fastest schedule that fits the memory budget. All choices give bitwise identical
// results. If no schedule fits, the error states the smallest possible budget.
#include "engine/choose/budget.h"

#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "engine/choose/pipeline_cut.h"
#include "tests/engine/all_cuts.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/engine/plan/random_plan.h"
#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

int64_t smallest_budget(const ModelSpec& model, const Policy& policy, const Topology& topology) {
  try {
    plan_within(1, model, policy, topology, CostModel::typical_host());
  } catch (const UnavailableError& error) {
    const std::string text = error.what();
    return std::stoll(text.substr(text.rfind('(', text.find(" bytes) per rank")) + 1));
  }
  return -1;
}

/// On GPUs the planner offloads optimizer state to host memory as a last resort. On hosts this would save no memory.
TEST(Budget, OffloadsStateOnGpusAsALastResort) {
  const ModelSpec model = testing::chain(12, 1 << 24);
  Topology gpus = testing::hosts(2, 2);
  gpus.gpu_of_rank = {0, 1};
  const CostModel cost = CostModel::typical_gpu();
  const auto within = [&](int64_t bytes) { return plan_within(bytes, model, {.zero_stage = 2}, gpus, cost); };
  const int64_t unconstrained = rank_bytes(plan(model, {.zero_stage = 2}, gpus));
  EXPECT_EQ(within(unconstrained).policy.offload_state, Offload::kNone);
  const Plan tight = within(unconstrained * 3 / 4);
  EXPECT_EQ(tight.policy.offload_state, Offload::kHost);
  EXPECT_LE(rank_bytes(tight), unconstrained * 3 / 4);
  EXPECT_NE(tight.choice.find("optimizer state in the host's memory"), std::string::npos) << tight.choice;
  EXPECT_THROW(plan_within(unconstrained * 3 / 4, model, {.zero_stage = 2}, testing::hosts(2, 2), cost),
               UnavailableError);
}

TEST(Budget, IsNotExceededAndALargerBudgetIsNeverSlower) {
  const ModelSpec model = testing::chain(12, 1 << 16);
  // Gathers run once per pass and reduces once per step, so more memory can only save gathers.
  const Policy policy = {
      .zero_stage = 3, .micro_batch_count = 4, .accumulate_into = AccumulateInto::kFull, .gather = GatherMode::kCopy};
  const Topology topology = testing::hosts(4, 2);
  const int64_t least = smallest_budget(model, policy, topology);
  ASSERT_GT(least, 0);
  EXPECT_THROW(plan_within(least - 1, model, policy, topology, CostModel::typical_host()), UnavailableError);
  double before = 1e30;
  int different = 0;
  for (int64_t budget = least; budget < 6 * least; budget += least / 8) {
    const Plan fitted = plan_within(budget, model, policy, topology, CostModel::typical_host());
    EXPECT_LE(rank_bytes(fitted), budget);
    EXPECT_LE(account(fitted.schedule).peak_bytes, budget);
    EXPECT_FALSE(fitted.choice.empty());
    const double seconds = simulate(fitted, CostModel::typical_host()).step_seconds;
    EXPECT_LE(seconds, before);
    different += seconds < before;
    before = seconds;
  }
  EXPECT_GE(different, 3) << "a larger budget should allow a faster schedule";
  Policy without = policy;
  without.prefetch = 0;
  EXPECT_EQ(least, rank_bytes(plan(model, without, topology)));
}

/// A step of this model needs little more than the persistent buffers, so staging between steps determines the peak.
TEST(Budget, CountsStagingBetweenSteps) {
  const ModelSpec model = testing::chain(2, 1 << 16);
  const Topology topology = Topology::one_host(1);
  const Plan unconstrained = plan(model, {.zero_stage = 0}, topology);
  const int64_t peak_bytes = account(unconstrained.schedule).peak_bytes;
  ASSERT_GT(peak_bytes, account(unconstrained.schedule).step_peak_bytes);
  const CostModel cost = CostModel::typical_host();
  EXPECT_NO_THROW(plan_within(peak_bytes, model, {.zero_stage = 0}, topology, cost));
  EXPECT_THROW(plan_within(peak_bytes - 1, model, {.zero_stage = 0}, topology, cost), UnavailableError);
}

/// The caller's memory between steps shares the staging with the engine, and counts in a budget.
TEST(Budget, CountsMemoryOfTheCallerBetweenSteps) {
  constexpr int64_t kBytes = int64_t{4} << 20;
  const ModelSpec model = testing::chain(2, 1 << 16);
  const Topology topology = Topology::one_host(1);
  const Policy policy{.zero_stage = 0, .between_steps_bytes = kBytes};
  const Plan made = plan(model, policy, topology);
  EXPECT_EQ(made.schedule.stream_bytes, kBytes);
  const Account planned = account(made.schedule);
  EXPECT_EQ(planned.peak[static_cast<std::size_t>(Category::kStaging)], kBytes);
  EXPECT_EQ(planned.peak_bytes, persistent_bytes(made.schedule) + kBytes);
  EXPECT_EQ(rank_bytes(made), planned.peak_bytes);
  const CostModel cost = CostModel::typical_host();
  EXPECT_NO_THROW(plan_within(planned.peak_bytes, model, policy, topology, cost));
  EXPECT_THROW(plan_within(planned.peak_bytes - 1, model, policy, topology, cost), UnavailableError);
  EXPECT_NE(hash(made), hash(plan(model, {.zero_stage = 0}, topology))) << "ranks must agree on the staging";
  EXPECT_THROW(plan(model, {.between_steps_bytes = -1}, topology), UsageError);
}

/// The cut that balances the computation puts six of eight units on the first pipeline stage. With this cut, the budget
/// is enough for a step, but not for the caller's memory between steps. A cut with fewer units on that stage fits both.
TEST(Budget, CutsPipelinesForTheMemoryOfTheCaller) {
  ModelSpec model = testing::chain(8, 1 << 16);
  CostModel cost = CostModel::typical_host();
  for (int use = 0; use < 8; ++use) {
    const double seconds = use < 6 ? 0.01 : 0.03;
    model.activations.uses.push_back({.output_bytes = 1 << 10, .kept_bytes = 1 << 10});
    cost.uses.push_back({.forward_seconds = seconds, .backward_seconds = 2 * seconds});
  }
  model.activations.backward_bytes = 1 << 10;
  const Topology ranks = Topology::one_host(2);
  const auto bytes = [&](const Policy& policy) {
    int64_t most = 0;
    for (const Plan& stage : plan_pipeline(model, policy, ranks)) most = std::max(most, rank_bytes(stage));
    return most;
  };
  Policy policy{.zero_stage = 1, .micro_batch_count = 2, .pipeline = 2};
  EXPECT_EQ(cut_pipeline(model, policy, cost), (PipelineCut{6, 2}));
  policy.pipeline_cut = {6, 2};
  const int64_t budget = bytes(policy);
  policy.between_steps_bytes = int64_t{2} << 20;
  EXPECT_GT(bytes(policy), budget);
  policy.pipeline_cut = {};
  for (const Plan& stage : plan_pipeline_within(budget, model, policy, ranks, cost))
    EXPECT_LE(rank_bytes(stage), budget) << stage.choice;
}

TEST(Budget, KeepsPolicyFieldsThatChangeBits) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const testing::RandomCase drawn = testing::draw(seed, 4, 6);
    const int64_t least = smallest_budget(drawn.model, drawn.policy, drawn.topology);
    if (least <= 1) continue;
    const Plan fitted = plan_within(least, drawn.model, drawn.policy, drawn.topology, CostModel::typical_host());
    EXPECT_EQ(rank_bytes(fitted), least) << testing::describe(seed, drawn);
    EXPECT_EQ(fitted.policy.zero_stage, drawn.policy.zero_stage);
    EXPECT_EQ(fitted.policy.accumulate_into, drawn.policy.accumulate_into);
    EXPECT_EQ(fitted.policy.micro_batch_count, drawn.policy.micro_batch_count);
    EXPECT_EQ(fitted.policy.precision.describe(), drawn.policy.precision.describe());
    EXPECT_EQ(fitted.policy.reproducible, drawn.policy.reproducible);
    EXPECT_EQ(fitted.policy.update_in_backward, drawn.policy.update_in_backward);
  }
}

/// The first pipeline stage keeps the activations of the most micro-batches. So the planner gives it fewer uses than a
/// cut that only balances the computation.
TEST(Budget, MovesUsesOfAPipelineToStagesWithMoreMemory) {
  ModelSpec model = testing::chain(12, 1 << 12);
  CostModel cost = CostModel::typical_host();
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    model.activations.uses.push_back({.output_bytes = 1 << 16, .kept_bytes = 1 << 20});
    cost.uses.push_back({.forward_seconds = 0.01, .backward_seconds = 0.02});
  }
  model.activations.backward_bytes = 1 << 16;
  Policy policy{.zero_stage = 3, .micro_batch_count = 8};
  policy.pipeline = 4;
  const Topology ranks = testing::hosts(4, 4);
  policy.pipeline_cut = {3, 3, 3, 3};
  int64_t bytes_of_equal_cut = 0;
  for (const Plan& stage : plan_pipeline(model, policy, ranks))
    bytes_of_equal_cut = std::max(bytes_of_equal_cut, rank_bytes(stage));
  const auto within = [&](int64_t budget_bytes, PipelineCut cut) {
    policy.pipeline_cut = std::move(cut);
    return plan_pipeline_within(budget_bytes, model, policy, ranks, cost);
  };
  EXPECT_EQ(within(bytes_of_equal_cut, {}).front().policy.pipeline_cut, (PipelineCut{3, 3, 3, 3}));
  const int64_t less = bytes_of_equal_cut * 3 / 4;
  const std::vector<Plan> moved = within(less, {});
  for (const Plan& stage : moved) EXPECT_LE(rank_bytes(stage), less);
  EXPECT_LT(moved.front().policy.pipeline_cut.front(), 3) << moved.front().choice;
  EXPECT_THROW(within(less, {3, 3, 3, 3}), UnavailableError);  // a cut that the user sets is kept
}

TEST(Budget, StatesTheMemoryThatFasterSchedulesNeed) {
  const ModelSpec model = testing::chain(12, 1 << 16);
  const Policy policy = {.zero_stage = 3, .gather = GatherMode::kCopy};
  const Topology topology = testing::hosts(4, 1);
  const Plan tight =
      plan_within(smallest_budget(model, policy, topology), model, policy, topology, CostModel::typical_host());
  EXPECT_NE(tight.choice.find("would need"), std::string::npos) << tight.choice;
  const Plan wide = plan_within(int64_t{1} << 40, model, policy, topology, CostModel::typical_host());
  EXPECT_EQ(wide.choice.find("would need"), std::string::npos) << wide.choice;
}

TEST(Budget, DoesNotChangeResults) {
  using namespace testing_model;
  Settings settings;
  settings.options = {.zero_stage = 3, .gather = GatherMode::kCopy};
  const Outcome reference = train_without_engine(2, settings);
  World::threads(2,
                 [&](World& world) {
                   Settings own = settings;
                   for (const int64_t budget : {int64_t{40'000}, int64_t{1} << 30}) {
                     own.options.memory_budget_bytes = budget;
                     EXPECT_TRUE(train(world, own) == reference) << budget;
                   }
                   own.options.memory_budget_bytes = 1000;
                   EXPECT_THROW(train(world, own), UnavailableError);
                 },
                 {.device = DeviceChoice::kHost, .timeout_seconds = 60});
}

ModelSpec model_with_saved_activations(int use_count) {
  ModelSpec model = testing::chain(use_count, 1 << 14);
  for (int u = 0; u < use_count; ++u) model.activations.uses.push_back({4096, 1 << 20, 0, true});
  return model;
}

/// The planner recomputes as few uses as the budget allows: with one use less, the plan exceeds the budget.
TEST(Budget, RecomputesTheFewestUsesThatFit) {
  const ModelSpec model = model_with_saved_activations(23);
  const Topology topology = Topology::one_host(2);
  const CostModel cost = CostModel::typical_host();
  const auto bytes_with = [&](int count) {
    Policy policy = {.zero_stage = 2, .recompute = count};
    return rank_bytes(plan(model, policy, topology));
  };
  const int64_t most = bytes_with(0), least = bytes_with(23);
  ASSERT_GT(most - least, int64_t{20} << 20);
  int before = 24;
  for (int64_t budget = least; budget <= most; budget += (most - least) / 7) {
    const Plan chosen = plan_within(budget, model, {.zero_stage = 2}, topology, cost);
    const int count = chosen.policy.recompute;
    EXPECT_LE(rank_bytes(chosen), budget);
    EXPECT_LE(count, before) << "a larger budget should not recompute more uses";
    if (count > 0) {
      Policy one_less = chosen.policy;
      --one_less.recompute;
      one_less.prefetch = one_less.keep_gathered = 0;
      EXPECT_GT(rank_bytes(plan(model, one_less, topology)), budget);
      EXPECT_NE(chosen.choice.find(fmt::format("{} of 23 uses recomputed", count)), std::string::npos) << chosen.choice;
    }
    before = count;
  }
  EXPECT_EQ(plan_within(most, model, {.zero_stage = 2}, topology, cost).policy.recompute, 0);
  EXPECT_EQ(plan_within(most, model, {.zero_stage = 2}, topology, cost).choice.find("nothing recomputed"), 0);
  EXPECT_EQ(plan_within(most, model, {.zero_stage = 2, .recompute = 5}, topology, cost).policy.recompute, 5);
  EXPECT_THROW(plan_within(least, model, {.zero_stage = 2, .recompute = 0}, topology, cost), UnavailableError);
  EXPECT_THROW(plan_within(most, model, {.zero_stage = 2, .recompute = -3}, topology, cost), UsageError);
}

/// A model for pipelines, and its policy without a cut.
ModelSpec model_for_pipelines(int use_count) {
  ModelSpec model = model_with_saved_activations(use_count);
  model.activations.backward_bytes = 4096;
  return model;
}
Policy pipeline_policy(int stages, PipelineCut cut = {}) {
  return {.zero_stage = 2, .micro_batch_count = 4, .pipeline = stages, .pipeline_cut = std::move(cut)};
}

TEST(Budget, ANumberOfRecomputedUsesAppliesToEachPipelineStage) {
  Policy policy = pipeline_policy(2, {14, 10});
  policy.recompute = 12;
  const std::vector<Plan> stages = plan_pipeline(model_for_pipelines(24), policy, Topology::one_host(4));
  std::vector<bool> expected(24, false);
  std::fill_n(expected.begin(), 12, true);
  EXPECT_EQ(recomputed_uses(stages[0]), expected);
  expected.assign(24, false);
  std::fill_n(expected.begin() + 14, 10, true);
  EXPECT_EQ(recomputed_uses(stages[1]), expected);
}

/// Pipeline stage 0 keeps more micro-batches in flight than pipeline stage 1, so it must recompute more uses. Each
/// pipeline stage recomputes as few uses as the budget allows: with one use less, its plan exceeds the budget.
TEST(Budget, EachPipelineStageRecomputesTheFewestUsesThatFit) {
  const ModelSpec model = model_for_pipelines(24);
  const Topology topology = Topology::one_host(4);
  Policy policy = pipeline_policy(2, {12, 12});
  policy.recompute = 0;
  const std::vector<Plan> without = plan_pipeline(model, policy, topology);
  policy.recompute = kRecomputeAsNeeded;
  for (const int64_t less : {-(int64_t{1} << 20), int64_t{3} << 20, int64_t{6} << 20}) {
    const int64_t budget = rank_bytes(without[1]) - less;
    const auto chosen = plan_pipeline_within(budget, model, policy, topology, CostModel::typical_host());
    std::vector<int> counts = chosen.front().policy.recompute_by_stage;
    ASSERT_EQ(counts.size(), 2U);
    EXPECT_GT(counts[0], counts[1]);
    EXPECT_EQ(counts[1] > 0, less > 0);
    EXPECT_NE(chosen.front().choice.find(fmt::format("{} of 24 uses recomputed", counts[0] + counts[1])),
              std::string::npos)
        << chosen.front().choice;
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_LE(rank_bytes(chosen[s]), budget);
      if (counts[s] == 0) continue;
      Policy one_less = chosen.front().policy;
      --one_less.recompute_by_stage[s];
      one_less.prefetch = one_less.keep_gathered = 0;
      EXPECT_GT(rank_bytes(plan_pipeline(model, one_less, topology)[s]), budget);
    }
  }
}

/// Random models with every number of recomputed uses. If any cut meets a budget, the search finds one that does.
TEST(Budget, FindsACutThatFitsIfThereIsOne) {
  std::mt19937 random(1);
  const Topology topology = Topology::one_host(6);
  for (int trial = 0; trial < 40; ++trial) {
    const int stages = 2 + static_cast<int>(random() % 2), uses = stages + 2 + static_cast<int>(random() % 5);
    ModelSpec model = testing::chain(uses, 1 << 10);
    model.activations.backward_bytes = 4096;
    for (int u = 0; u < uses; ++u) {
      model.units[u].parameters.front().tensor.shape = {static_cast<int64_t>(256 * (1 + random() % 64))};
      model.activations.uses.push_back({4096, static_cast<int64_t>(4096 * (random() % 64)), 0, random() % 4 > 0});
    }
    Policy policy = pipeline_policy(stages);
    policy.zero_stage = 1;
    policy.recompute = trial % 2 == 0 ? kRecomputeAsNeeded : static_cast<int>(random() % 3);
    const bool can = std::ranges::any_of(model.activations.uses, &UseActivations::recomputable);
    if (!can && policy.recompute > 0) policy.recompute = 0;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const PipelineCut& cut : testing::all_cuts(uses, stages)) {
      Policy smallest = policy;
      smallest.pipeline_cut = cut;
      smallest.prefetch = smallest.keep_gathered = 0;
      for (const int recompute :
           policy.recompute >= 0 ? std::vector{policy.recompute} : std::vector{0, can ? kRecomputeAll : 0}) {
        smallest.recompute = recompute;
        int64_t most = 0;
        for (const Plan& stage : plan_pipeline(model, smallest, topology)) most = std::max(most, rank_bytes(stage));
        least = std::min(least, most);
      }
    }
    for (const double factor : {1.0, 1.02, 1.1, 1.3}) {
      try {
        (void)plan_pipeline_within(static_cast<int64_t>(static_cast<double>(least) * factor), model, policy, topology,
                                   CostModel::typical_host());
      } catch (const UnavailableError& error) {
        ADD_FAILURE() << "trial " << trial << ": " << error.what() << "; a cut needs " << least << " bytes";
      }
    }
  }
}

TEST(Budget, ChecksTheModelFirst) {
  ModelSpec model = model_for_pipelines(6);
  model.activations.uses.resize(4);
  for (const int stages : {1, 2}) {
    const Policy policy = stages == 1 ? Policy{.zero_stage = 2} : pipeline_policy(2, {3, 3});
    EXPECT_THROW(plan_pipeline_within(1 << 30, model, policy, Topology::one_host(2), CostModel::typical_host()),
                 UsageError);
  }
  model = model_for_pipelines(6);
  model.uses[2] = {99};
  EXPECT_THROW(plan_pipeline_within(1 << 30, model, pipeline_policy(2, {3, 3}), Topology::one_host(2),
                                    CostModel::typical_host()),
               UsageError);
}

}  // namespace
}  // namespace aliquot
