// Tests that the planner chooses the fastest pipeline schedule that fits the memory budget.
#include "engine/choose/pipeline_schedule.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

#include "engine/choose/budget.h"
#include "engine/choose/pipeline_cut.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/engine/plan/random_plan.h"
#include "tests/support/usage_error_message.h"

namespace aliquot {
namespace {

using enum PipelineSchedule;

constexpr int kUses = 8, kStages = 4;

/// A model whose uses all take the same time. With `splits`, backward passes can be split.
ModelSpec model_of(bool splits) {
  ModelSpec model = testing::chain(kUses, 1 << 12);
  for (int use = 0; use < kUses; ++use) {
    model.activations.uses.push_back({.output_bytes = 1 << 12,
                                      .kept_bytes = 1 << 20,
                                      .splits_backward = splits,
                                      .weight_inputs_bytes = splits ? 1 << 20 : 0});
  }
  model.activations.backward_bytes = 1 << 12;
  return model;
}

CostModel cost_of(double forward_seconds) {
  CostModel cost = CostModel::typical_host();
  cost.uses.assign(kUses, {forward_seconds, 2 * forward_seconds});
  return cost;
}

Policy policy_of(PipelineSchedule schedule) {
  return {.zero_stage = 2, .micro_batch_count = 8, .pipeline = kStages, .pipeline_schedule = schedule};
}

std::vector<Plan> chosen(const ModelSpec& model, const Policy& policy, const CostModel& cost,
                         const MemoryLimit& limit = {}) {
  return choose_plans(limit, model, policy, testing::hosts(kStages, kStages), cost);
}

double seconds_of(const std::vector<Plan>& stages, const CostModel& cost) {
  double seconds = 0;
  for (const Timeline& stage : simulate(stages, cost)) seconds = std::max(seconds, stage.step_seconds);
  return seconds;
}

int64_t bytes_of(const std::vector<Plan>& stages) {
  int64_t bytes = 0;
  for (const Plan& stage : stages) bytes = std::max(bytes, rank_bytes(stage));
  return bytes;
}

TEST(PipelineScheduleChoice, IsTheFastest) {
  for (const bool splits : {false, true}) {
    for (const double forward_seconds : {1e-2, 1e-6}) {
      const ModelSpec model = model_of(splits);
      const CostModel cost = cost_of(forward_seconds);
      const std::vector<Plan> best = chosen(model, policy_of(kAuto), cost);
      double fastest = 1e9;
      for (const auto schedule : {k1F1B, kGpipe, kInterleaved, kZeroBubble}) {
        if (schedule == kZeroBubble && !splits) continue;
        Policy policy = policy_of(schedule);
        if (schedule == kInterleaved) policy.virtual_stages = 2;
        fastest = std::min(fastest, seconds_of(chosen(model, policy, cost), cost));
      }
      EXPECT_LE(seconds_of(best, cost), 1.01 * fastest) << best.front().choice;
      EXPECT_NE(best.front().policy.pipeline_schedule, kAuto);
    }
  }
}

/// If passes are long compared with messages, the bubble determines which schedule is chosen.
TEST(PipelineScheduleChoice, DependsOnTheModel) {
  const CostModel slow = cost_of(1e-2);
  const std::vector<Plan> split = chosen(model_of(true), policy_of(kAuto), slow);
  EXPECT_EQ(split.front().policy.pipeline_schedule, kZeroBubble) << split.front().choice;
  EXPECT_EQ(split.front().choice.rfind(
                "pipeline schedule zero-bubble, by simulated time and memory (time per step: 1f1b ", 0),
            0U)
      << split.front().choice;
  const std::vector<Plan> whole = chosen(model_of(false), policy_of(kAuto), slow);
  EXPECT_EQ(whole.front().policy.pipeline_schedule, kInterleaved) << whole.front().choice;
}

/// With slow messages, GPipe is slightly faster than 1F1B, but needs much more memory.
TEST(PipelineScheduleChoice, DoesNotTakeMuchMemoryForALittleTime) {
  const ModelSpec model = model_of(false);
  CostModel cost = cost_of(1e-2);
  cost.inside_node = {.bytes_per_second = 1e8, .latency_seconds = 1e-4};
  Policy policy = policy_of(kAuto);
  policy.pipeline_cut = {2, 2, 2, 2};
  const auto with = [&](PipelineSchedule schedule) {
    policy.pipeline_schedule = schedule;
    return chosen(model, policy, cost);
  };
  EXPECT_LT(bytes_of(with(k1F1B)), bytes_of(with(kGpipe)));
  EXPECT_LT(seconds_of(with(k1F1B), cost), 1.01 * seconds_of(with(kGpipe), cost));
  EXPECT_EQ(with(kAuto).front().policy.pipeline_schedule, k1F1B) << with(kAuto).front().choice;
}

TEST(PipelineScheduleChoice, FitsTheBudget) {
  const ModelSpec model = model_of(true);
  const CostModel cost = cost_of(1e-2);
  const int64_t least = bytes_of(chosen(model, policy_of(k1F1B), cost));
  const std::vector<Plan> tight = chosen(model, policy_of(kAuto), cost, {least});
  EXPECT_EQ(tight.front().policy.pipeline_schedule, k1F1B) << tight.front().choice;
  EXPECT_LE(bytes_of(tight), least);
  EXPECT_NE(tight.front().choice.find("zero-bubble does not fit"), std::string::npos) << tight.front().choice;
  EXPECT_EQ(chosen(model, policy_of(kAuto), cost, {2 * least}).front().policy.pipeline_schedule, kZeroBubble);
  EXPECT_THROW(chosen(model, policy_of(kAuto), cost, {1000}), UnavailableError);
}

/// A preferred limit does not change the plans of the schedules, so none may fit.
TEST(PipelineScheduleChoice, PrefersSchedulesThatFit) {
  const ModelSpec model = model_of(true);
  const CostModel cost = cost_of(1e-2);
  const int64_t least = bytes_of(chosen(model, policy_of(k1F1B), cost));
  const std::vector<Plan> tight = chosen(model, policy_of(kAuto), cost, {least, MemoryLimit::kPreferred});
  EXPECT_EQ(tight.front().policy.pipeline_schedule, k1F1B) << tight.front().choice;
  EXPECT_EQ(bytes_of(tight), least);
  EXPECT_NE(tight.front().choice.find(" s but does not fit"), std::string::npos) << tight.front().choice;
  const std::vector<Plan> none = chosen(model, policy_of(kAuto), cost, {1000, MemoryLimit::kPreferred});
  EXPECT_EQ(none.front().policy.pipeline_schedule, k1F1B) << none.front().choice;
}

/// A cut has one number for each virtual stage, so it determines how many there are.
TEST(PipelineScheduleChoice, KeepsTheCut) {
  Policy policy = policy_of(kAuto);
  policy.pipeline_cut = {1, 1, 1, 1, 1, 1, 1, 1};
  const std::vector<Plan> stages = chosen(model_of(true), policy, cost_of(1e-2));
  EXPECT_EQ(stages.front().policy.pipeline_schedule, kInterleaved);
  EXPECT_EQ(stages.front().policy.virtual_stages, 2);
  EXPECT_EQ(stages.front().policy.pipeline_cut, policy.pipeline_cut);
  policy.pipeline_cut = {2, 2, 2, 1};
  EXPECT_NE(test::usage_error_message([&] {
              chosen(model_of(true), policy, cost_of(1e-2));
            }).find("has 7 uses in all, but the model has 8"),
            std::string::npos);
}

/// If uses take different times, transfers in the order of the default pass times wait for others whose data is
/// produced later.
TEST(PipelineScheduleChoice, OrdersTransfersByTheTimesOfThePasses) {
  const ModelSpec model = model_of(true);
  std::mt19937 random(1);
  double least = 1, most = 0;
  for (int trial = 0; trial < 40; ++trial) {
    CostModel cost = cost_of(0);
    for (UseCost& use : cost.uses) {
      use.forward_seconds = 1e-3 * static_cast<double>(1 + random() % 16);
      use.backward_seconds = 2 * use.forward_seconds;
    }
    Policy policy = policy_of(trial % 2 == 0 ? kInterleaved : kZeroBubble);
    if (trial % 2 == 0) policy.virtual_stages = 2;
    const std::vector<Plan> timed = chosen(model, policy, cost);
    policy = timed.front().policy;
    policy.pass_times.clear();
    const std::vector<Plan> untimed = plan_pipeline(model, policy, testing::hosts(kStages, kStages));
    const double ratio = seconds_of(timed, cost) / seconds_of(untimed, cost);
    least = std::min(least, ratio);
    most = std::max(most, ratio);
  }
  EXPECT_LT(least, 0.98);
  EXPECT_LT(most, 1.001);
}

/// If transfers take about as long as passes, a stage must begin to receive before the pass that precedes the use of
/// the data. Without the times of transfers, it would begin after that pass.
TEST(PipelineScheduleChoice, OrdersTransfersByTheirTimes) {
  const ModelSpec model = model_of(true);
  const Topology nodes = testing::hosts(kStages, 1);
  std::mt19937 random(1);
  double least = 1, most = 0;
  for (int trial = 0; trial < 40; ++trial) {
    CostModel cost = cost_of(1e-3 * static_cast<double>(1 + random() % 16));
    cost.between_nodes = {
        .bytes_per_second = static_cast<double>(1 << 12) / (1e-3 * static_cast<double>(1 + random() % 16)),
        .latency_seconds = 1e-5};
    Policy policy = policy_of(trial % 2 == 0 ? kGpipe : k1F1B);
    const std::vector<Plan> timed = choose_plans({}, model, policy, nodes, cost);
    policy = timed.front().policy;
    for (PassTimes& of : policy.pass_times) of.send_activations = of.send_gradients = 0;
    const double ratio = seconds_of(timed, cost) / seconds_of(plan_pipeline(model, policy, nodes), cost);
    least = std::min(least, ratio);
    most = std::max(most, ratio);
  }
  EXPECT_LT(least, 0.9);
  EXPECT_LT(most, 1.001);
}

TEST(PipelineScheduleChoice, ZeroBubbleNeedsAUseThatSplits) {
  const std::string refusal =
      test::usage_error_message([&] { chosen(model_of(false), policy_of(kZeroBubble), cost_of(1e-2)); });
  EXPECT_NE(refusal.find("no use of the model declares a split backward"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace aliquot
