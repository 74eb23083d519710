#include "engine/proof/validate.h"

#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>

#include "kernels/system/error.h"
#include "tests/engine/plan/brute_force.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/engine/plan/random_plan.h"

namespace aliquot {
namespace {

using testing::chain;
using testing::describe;
using testing::draw;
using testing::RandomCase;

std::string sentences(const std::vector<Defect>& defects) {
  std::string lines;
  for (const Defect& defect : defects) lines += fmt::format("  {}: {}\n", name(defect.kind), defect.sentence);
  return lines;
}

Plan plan_chain(Policy policy, int unit_count = 3) { return plan(chain(unit_count), policy, Topology::one_host(2)); }

OperationId find(const Plan& plan, Verb verb, int32_t operand) {
  for (std::size_t id = 0; id < plan.schedule.operations.size(); ++id) {
    const Operation& operation = plan.schedule.operations[id];
    if (operation.verb == verb && operation.operand == operand) return static_cast<OperationId>(id);
  }
  return -1;
}

TEST(Validate, AcceptsThousandsOfRandomPlans) {
  for (uint64_t seed = 0; seed < 4000 && !HasFailure(); ++seed) {
    const RandomCase drawn = draw(seed);
    const Plan planned = plan(drawn.model, drawn.policy, drawn.topology);
    const auto defects = validate(planned);
    EXPECT_TRUE(defects.empty()) << describe(seed, drawn) << "\n" << sentences(defects) << text(planned);
  }
}

/// Compares the validator with the brute-force reference, for a plan of a random case and for its replay. Returns
/// false if the plan is too large for the reference.
bool agrees_with_brute_force(uint64_t seed, const RandomCase& drawn, const Plan& planned) {
  if (planned.schedule.operations.size() > 60) return false;
  std::vector<Plan> plans = {planned};
  if (drawn.policy.replay_every != 0) plans.push_back(replay_of(planned));
  for (const Plan& each : plans) {
    EXPECT_EQ(testing::find_race(each), "") << describe(seed, drawn) << "\n" << text(each);
    EXPECT_TRUE(validate(each).empty()) << describe(seed, drawn) << sentences(validate(each));
  }
  return true;
}

TEST(Validate, AgreesWithTheBruteForceReference) {
  int compared = 0;
  for (uint64_t seed = 5000; seed < 6500 && !HasFailure(); ++seed) {
    const RandomCase drawn = draw(seed, 4, 4);
    compared += agrees_with_brute_force(seed, drawn, plan(drawn.model, drawn.policy, drawn.topology)) ? 1 : 0;
  }
  EXPECT_GT(compared, 200);
}

TEST(Validate, AgreesWithTheBruteForceReferenceOnGpus) {
  int compared = 0, staged = 0, views = 0;
  for (uint64_t seed = 7000; seed < 8200 && !HasFailure(); ++seed) {
    const RandomCase hosts = draw(seed, 4, 4);
    const RandomCase drawn = seed % 3 == 0 ? testing::on_one_gpu(hosts) : testing::over_nccl(hosts);
    const std::optional<Plan> planned = testing::planned(drawn);
    if (!planned || !agrees_with_brute_force(seed, drawn, *planned)) continue;
    ++compared;
    views += planned->schedule.view ? 1 : 0;
    for (const PlannedBuffer& buffer : planned->schedule.buffers) staged += buffer.role == Role::kReduceStaging ? 1 : 0;
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(staged, 20);
  EXPECT_GT(views, 10);
}

/// Each of the next three tests removes waits for operations of other ranks. No other waits guarantee the same order,
/// so the validator must report a race.
TEST(Validate, ReportsAViewDuringAnUpdateOnAnotherRank) {
  Plan planned = plan_chain({.zero_stage = 3, .gather = GatherMode::kView});
  Operation& gather = planned.schedule.operations[find(planned, Verb::kGather, 0)];
  ASSERT_EQ(gather.after.size(), 1u);
  gather.after[0].of = GroupId::kRank;
  const auto defects = validate(planned);
  ASSERT_FALSE(defects.empty());
  EXPECT_EQ(defects[0].kind, DefectKind::kRace);
  EXPECT_EQ(defects[0].sentence,
            "gather h.0 (operation 0) accesses the parameters of h.0, which update h.0 (operation 20) of the "
            "previous step may still be writing on another rank");
}

TEST(Validate, ReportsAnUpdateDuringAViewOnAnotherRank) {
  Plan planned = plan_chain({.zero_stage = 3, .gather = GatherMode::kView});
  for (Operation& operation : planned.schedule.operations) {
    if (operation.verb == Verb::kUpdate)
      std::erase_if(operation.after, [](const Wait& wait) { return wait.of != GroupId::kRank; });
  }
  const auto defects = validate(planned);
  ASSERT_FALSE(defects.empty());
  EXPECT_NE(defects[0].sentence.find("release h.0"), std::string::npos) << defects[0].sentence;
  EXPECT_NE(defects[0].sentence.find("still be reading on another rank"), std::string::npos) << defects[0].sentence;
}

TEST(Validate, ReportsABackwardDuringAReduceOnAnotherRank) {
  Plan planned = plan_chain({.zero_stage = 2, .prefetch = 0});
  Operation& backward = planned.schedule.operations[find(planned, Verb::kBackward, 1)];
  for (Wait& wait : backward.after) wait.of = GroupId::kRank;
  const auto defects = validate(planned);
  ASSERT_FALSE(defects.empty());
  EXPECT_NE(defects[0].sentence.find("backward h.1"), std::string::npos) << defects[0].sentence;
  EXPECT_NE(defects[0].sentence.find("reduce h.2"), std::string::npos) << defects[0].sentence;
}

TEST(Validate, ReportsACycle) {
  Plan planned = plan_chain({.zero_stage = 1});
  planned.schedule.operations[0].after.push_back({3});
  const auto defects = validate(planned);
  ASSERT_EQ(defects.size(), 1u);
  EXPECT_EQ(defects[0].kind, DefectKind::kWait);
  EXPECT_EQ(defects[0].sentence,
            "forward h.0 (operation 0) waits for backward h.2 (operation 3), which is issued later: expected an "
            "earlier operation");
}

TEST(Validate, ReportsTheFirstCollectiveMismatch) {
  const Plan ours = plan_chain({.zero_stage = 2}), theirs = plan_chain({.zero_stage = 1});
  EXPECT_FALSE(first_collective_mismatch(ours, theirs));  // ZeRO stages 1 and 2 have the same collectives
  const auto difference = first_collective_mismatch(ours, plan_chain({.zero_stage = 2}, 2));
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->sentence,
            "collective 0 of the step is reduce h.2 on the reduce lane, 4096 bytes in one plan and reduce h.1 on the "
            "reduce lane, 4096 bytes in the other");
}

TEST(Validate, ReportsInvalidIndices) {
  Plan planned = plan_chain({.zero_stage = 3});
  planned.schedule.operations[2].operand = 77;
  planned.schedule.operations[3].after.push_back({1000});
  planned.schedule.buffers[0].last = -1;
  const auto defects = validate(planned);
  ASSERT_EQ(defects.size(), 3u);
  for (const Defect& defect : defects) EXPECT_EQ(defect.kind, DefectKind::kMalformed) << defect.sentence;
}

/// Communication between replicas runs in parallel with the next backward, which has memory of its own.
TEST(Plan, ABackwardDoesNotWaitForTheLastAllReduceOverReplicas) {
  for (const int zero_stage : {2, 3}) {
    const Plan planned =
        plan(chain(8, 4096), {.zero_stage = zero_stage, .replica_count = 2, .gather = GatherMode::kCopy},
             testing::hosts(4, 2));
    OperationId last = -1;
    for (const Operation& operation : planned.schedule.operations) {
      if (is_model_code(operation.verb)) {
        for (const Wait& wait : operation.after) EXPECT_FALSE(!wait.of_previous_step && wait.operation == last);
      }
      if (operation.verb == Verb::kReplicaAllReduce)
        last = static_cast<OperationId>(&operation - planned.schedule.operations.data());
    }
    EXPECT_GT(last, 0);
  }
}

/// Returns `wanted` if the error of plan() contains it, the full error if not, and "nothing" if plan() does not throw.
std::string refusal(const ModelSpec& model, const Policy& policy, std::string_view wanted) {
  try {
    plan(model, policy, Topology::one_host(2));
  } catch (const UsageError& error) {
    const std::string message = error.what();
    return message.find(wanted) == message.npos ? message : std::string(wanted);
  }
  return "nothing";
}

TEST(Plan, RejectsAUseThatListsAUnitTwice) {
  ModelSpec model = chain(2);
  model.uses[1] = {1, 0, 1};
  EXPECT_THROW(plan(model, {}, Topology::one_host(2)), UsageError);
}

TEST(Plan, RejectsInvalidModels) {
  using Alter = std::function<void(ModelSpec&)>;
  const std::vector<std::pair<const char*, Alter>> cases = {
      {"the model declares no unit", [](ModelSpec& model) { model = {}; }},
      {"two units are both named h.0", [](ModelSpec& model) { model.units[1].name = "h.0"; }},
      {"two parameters are both named h.0.w",
       [](ModelSpec& model) { model.units[1].parameters[0].tensor.name = "h.0.w"; }},
      {"a use without units", [](ModelSpec& model) { model.uses[1].clear(); }},
      {"uses unit 2, but there are 2 units", [](ModelSpec& model) { model.uses[1] = {2}; }},
      {"unit h.1 is never used", [](ModelSpec& model) { model.uses.pop_back(); }},
      {"unit h.0 is used 2 times in a pass", [](ModelSpec& model) {
         model.units[0].gradients = GradientMode::kAssign;
         model.uses.push_back({0});
       }}};
  for (const auto& [sentence, alter] : cases) {
    ModelSpec model = chain(2);
    alter(model);
    EXPECT_EQ(refusal(model, {}, sentence), sentence);
  }
}

TEST(Plan, RejectsInvalidPolicies) {
  ModelSpec assigning = chain(2);
  for (UnitSpec& unit : assigning.units) unit.gradients = GradientMode::kAssign;
  constexpr const char* kAssigns =
      "unit h.0 assigns its gradients, so micro-batches cannot be summed in full gradients";
  EXPECT_EQ(refusal(assigning, {.zero_stage = 1, .micro_batch_count = 2}, kAssigns), kAssigns);
  const std::vector<std::pair<const char*, Policy>> cases = {
      {"EngineOptions::zero_stage is 4", {.zero_stage = 4}},
      {"EngineOptions::zero_stage is -1", {.zero_stage = -1}},
      {"EngineOptions::accumulate is 0: expected 1 or more", {.micro_batch_count = 0}},
      {"a step has 2 uses and 524289 micro-batches, and their product exceeds 1048576: set EngineOptions::accumulate "
       "to "
       "at most 524288",
       {.micro_batch_count = 524289}},
      {"EngineOptions::prefetch is -1", {.prefetch = -1}},
      {"EngineOptions::keep_gathered is -1", {.keep_gathered = -1}},
      {"EngineOptions::reproducible allows at most",
       {.zero_stage = 3, .micro_batch_count = 1 << 30, .reproducible = true}}};
  for (const auto& [sentence, policy] : cases) EXPECT_EQ(refusal(chain(2), policy, sentence), sentence);
}

TEST(Plan, RejectsParametersThatAreNotFp32) {
  ModelSpec model = chain(2);
  model.units[1].parameters.push_back({.tensor = {"h.1.b", {8}, DType::kBFloat16}});
  EXPECT_THROW(plan(model, {}, Topology::one_host(2)), UsageError);
}

}  // namespace
}  // namespace aliquot
