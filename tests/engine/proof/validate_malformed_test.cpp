// Damages the tables, the numbers and the order of passes of plans. The proof must report each defect before it uses a
// wrong index.
#include "tests/engine/proof/stage_mutations.h"

namespace aliquot {
namespace {

using namespace testing;

constexpr int kStages = 3, kMicroBatches = 4;

/// Plans a model of 6 units on 3 pipeline stages. With `tied`, the last use shares the unit of the first use.
Stages pipeline(bool tied) {
  Policy policy{.zero_stage = 2, .micro_batch_count = kMicroBatches, .pipeline = kStages, .pipeline_cut = {2, 2, 2}};
  ModelSpec model = chain_with_activations(6);
  if (tied) {
    model.uses.push_back({0});
    model.activations.uses.push_back(model.activations.uses.back());
    ++policy.pipeline_cut.back();
  }
  Stages stages = plan_pipeline(model, policy, hosts(2 * kStages, 2));
  EXPECT_EQ(stages.front().stage.tied_ends, tied);
  return stages;
}

/// A change of one plan, and a part of the sentence that must report it.
struct Change {
  std::string sentence;
  std::function<void(Plan&)> apply;
};

std::string malformed(const std::vector<Defect>& defects) {
  std::string lines;
  for (const Defect& defect : defects)
    lines += defect.kind == DefectKind::kMalformed ? defect.sentence + "\n" : "not malformed";
  return lines;
}

/// Applies the change to all plans. The proof of each plan and of all plans together must report it.
void expect_reported(const Change& change) {
  for (const bool tied : {false, true}) {
    Stages stages = pipeline(tied);
    for (Plan& stage : stages) {
      change.apply(stage);
      const std::string reported = malformed(validate(stage));
      EXPECT_NE(reported.find(change.sentence), std::string::npos) << change.sentence << ": " << reported;
    }
    EXPECT_NE(proof_error(stages), "") << change.sentence;
  }
}

PassOrder gpipe() { return pass_order(PipelineSchedule::kGpipe, kStages, kMicroBatches); }

/// All plans get the same order of passes. So a comparison of plans cannot find its defect; only the check of the order
/// itself can.
void expect_order_reported(const PassOrder& order, const std::string& sentence) {
  expect_reported({sentence, [&](Plan& plan) { plan.policy.pass_order = order; }});
  Stages stages = pipeline(true);
  for (Plan& stage : stages) stage.policy.pass_order = order;
  EXPECT_TRUE(reports(validate_stages(stages), sentence)) << sentences(validate_stages(stages));
}

TEST(ValidateMalformed, ReportsAnOrderForFewerRanks) {
  PassOrder order = gpipe();
  order.pop_back();
  expect_order_reported(order, "the pass order has lines for 2 ranks, but the pipeline has 3");
}

TEST(ValidateMalformed, ReportsAPassOfAnotherRank) {
  PassOrder order = gpipe();
  std::swap(order[0], order[1]);
  expect_order_reported(order, "pass order of rank 0: 1F0 belongs to rank 1");
}

TEST(ValidateMalformed, ReportsAVirtualStageThatDoesNotExist) {
  PassOrder order = gpipe();
  order[2][0].stage = 77;
  expect_order_reported(order, "pass order of rank 2: 77F0 names virtual stage 77");
}

TEST(ValidateMalformed, ReportsAnOrderWithADeadlock) {
  PassOrder order = gpipe();
  order[0].clear();
  for (int m = 0; m < kMicroBatches; ++m) {
    order[0].push_back({0, PassKind::kForward, m});
    order[0].push_back({0, PassKind::kBackward, m});
  }
  expect_order_reported(order, "because of a deadlock");
}

TEST(ValidateMalformed, ReportsAMissingPass) {
  PassOrder order = gpipe();
  order[1].pop_back();
  expect_order_reported(order, "pass order of rank 1: 1B3 is missing");
}

TEST(ValidateMalformed, ReportsAMicroBatchThatDoesNotExist) {
  PassOrder order = gpipe();
  order[1][0].micro_batch = -1;
  expect_order_reported(order, "an action has virtual stage 1 and micro-batch -1");
}

TEST(ValidateMalformed, ReportsAnUnknownKindOfPass) {
  PassOrder order = gpipe();
  order[1][0].pass = static_cast<PassKind>(200);
  expect_order_reported(order, "action 0 in the pass order of rank 1 has an unknown kind of pass");
}

TEST(ValidateMalformed, ReportsASecondPartOfABackwardWithoutTheFirst) {
  PassOrder order = gpipe();
  order[1].back().pass = PassKind::kBackwardWeights;
  expect_order_reported(order, "does not follow");
}

/// An evaluation ignores the order of training.
TEST(ValidateMalformed, AcceptsAnEvaluationWithTheOrderOfTraining) {
  for (const bool tied : {false, true}) {
    Stages stages = pipeline(tied);
    for (Plan& stage : stages) {
      stage.policy.pass_order = gpipe();
      stage = evaluation_of(stage);
      EXPECT_EQ(sentences(validate(stage)), "");
    }
    link_stages(stages);
    EXPECT_EQ(proof_error(stages), "");
  }
}

TEST(ValidateMalformed, ReportsWrongNumbersOfAPipelineStage) {
  const std::vector<Change> changes = {
      {"the plan is for pipeline stage -1", [](Plan& plan) { plan.stage.index = -1; }},
      {"the plan is for pipeline stage 3", [](Plan& plan) { plan.stage.index = kStages; }},
      {"but Policy::pipeline is 0", [](Plan& plan) { plan.policy.pipeline = 0; }},
      {"but Policy::pipeline is 4", [](Plan& plan) { plan.policy.pipeline = 4; }},
      {"a pipeline of 0", [](Plan& plan) { plan.stage.count = 0; }},
      {"has 0 virtual stages", [](Plan& plan) { plan.stage.runs.clear(); }},
      {"tied ends", [](Plan& plan) { plan.stage.tied_ends = !plan.stage.tied_ends; }},
      {"runs virtual stage 77", [](Plan& plan) { plan.stage.runs.back().index = 77; }},
      {"uses -1 to", [](Plan& plan) { plan.stage.runs.back().first_use = -1; }},
      {"to 98", [](Plan& plan) { plan.stage.runs.back().end_use = 99; }},
      {"has 3 micro-batches, but the policy has 4", [](Plan& plan) { --plan.schedule.micro_batch_count; }},
      {"has 4 micro-batches, but the policy has 0", [](Plan& plan) { plan.policy.micro_batch_count = 0; }},
      {"the number of micro-batches is -1",
       [](Plan& plan) { plan.policy.micro_batch_count = plan.schedule.micro_batch_count = -1; }},
      {"an evaluation has 4 micro-batches", [](Plan& plan) { plan.policy.evaluation = true; }}};
  for (const Change& change : changes) {
    if (change.sentence != "tied ends") expect_reported(change);
  }
  // If tied_ends is wrong, the last pipeline stage has one virtual stage too many or too few.
  for (const bool tied : {false, true}) {
    Stages stages = pipeline(tied);
    for (Plan& stage : stages) {
      stage.stage.tied_ends = !tied;
      EXPECT_NE(malformed(validate(stage)), "");
    }
    EXPECT_NE(proof_error(stages), "");
  }
}

TEST(ValidateMalformed, ReportsIndicesOutOfRangeInTables) {
  const std::vector<Change> changes = {
      {"the declared order uses unit 99", [](Plan& plan) { plan.model.uses[1] = {99}; }},
      {"unit_is_here has 0 entries: expected 6", [](Plan& plan) { plan.unit_is_here.clear(); }},
      {"flat buffer 2 belongs to unit 99: expected a unit from 0 to 5", [](Plan& plan) { plan.flats[2].unit = 99; }},
      {"flats_of_unit does not list the flat buffers", [](Plan& plan) { plan.flats_of_unit.clear(); }},
      {"flats_of_unit does not list the flat buffers", [](Plan& plan) { plan.flats_of_unit[3] = {99}; }},
      {"flat buffer 0 is divided over 5 ranks: expected 2",
       [](Plan& plan) { plan.flats[0].layout = FlatLayout(plan.flats[0].layout.tensors(), 5); }},
      {"matrix group 0 names flat buffer 99",
       [](Plan& plan) { plan.matrix_groups.push_back({.flats = {99}, .matrices = {}}); }},
      {"matrix group 0 names tensor 7 of flat buffer 1",
       [](Plan& plan) {
         plan.matrix_groups.push_back({.flats = {1}, .matrices = {{1, 7, 0, {}}}});
       }},
      {"a topology of 2 ranks has 1 GPU numbers", [](Plan& plan) { plan.topology.gpu_of_rank.pop_back(); }},
      {"a topology of 6 ranks has 2 numbers of NUMA nodes", [](Plan& plan) { plan.world.numa_of_rank.assign(2, 0); }},
      {"a topology of the plan has 0 ranks", [](Plan& plan) { plan.topology = {}; }},
      {"the buffer of role 200", [](Plan& plan) { plan.schedule.buffers[0].role = static_cast<Role>(200); }}};
  for (const Change& change : changes) expect_reported(change);
}

/// A wait refers to a later operation, whose operand is invalid. The sentence must report the wait without the name of
/// that operand.
TEST(ValidateMalformed, ReportsAWaitForAnInvalidOperation) {
  Plan plan = pipeline(false).front();
  auto& operations = plan.schedule.operations;
  operations[0].after.push_back({2});
  operations[2].operand = 99;
  const std::string reported = sentences(validate(plan));
  EXPECT_NE(reported.find("waits for operation 2, which is issued later"), std::string::npos) << reported;
}

TEST(ValidateMalformed, ReportsAUseOfAnotherPlanThatNamesNoUnit) {
  Stages stages = pipeline(false);
  stages[1].model.uses[1] = {99};
  EXPECT_TRUE(reports(validate_stages(stages), "use 1 (unit 99) of the plan of pipeline stage 1 has other units"))
      << sentences(validate_stages(stages));
}

TEST(ValidateMalformed, RefusesToProveNoPlans) {
  EXPECT_NE(proof_error({}).find("the list of plans is empty"), std::string::npos);
}

TEST(ValidateMalformed, ReportsNumbersOfRecomputedUsesForOtherStages) {
  expect_reported({"recompute_by_stage has 2 numbers: expected 3", [](Plan& plan) {
                     plan.policy.recompute_by_stage = {1, 1};
                   }});
}

}  // namespace
}  // namespace aliquot
