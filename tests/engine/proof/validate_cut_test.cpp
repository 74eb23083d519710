// Damages the division of the model into pipeline stages. The validator must report each defect, with the pipeline
// stage and the use or unit. prove() must report the defect before it validates any schedule.
#include "tests/engine/proof/stage_mutations.h"

namespace aliquot {
namespace {

using namespace testing;

std::map<std::string, Mutate> mutations_of_runs() {
  std::map<std::string, Mutate> all;
  all["a shorter last run"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    VirtualStage& run = stages[s].stage.runs.back();
    if (s + 1 < stages.size() || run.end_use - run.first_use < 2) return std::nullopt;
    --run.end_use;
    return fmt::format("the last virtual stage ends with {} on pipeline stage {}: expected {}",
                       use_name(stages[s], run.end_use - 1), s, use_name(stages[s], run.end_use));
  };
  all["a run without uses"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    VirtualStage& run = stages[s].stage.runs.back();
    run.end_use = run.first_use;
    return fmt::format("virtual stage {} on pipeline stage {} has no use: expected at least {}", run.index, s,
                       use_name(stages[s], run.first_use));
  };
  all["a run moved by one use"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    VirtualStage& run = stages[s].stage.runs.back();
    if (run.first_use + 1 == static_cast<int32_t>(stages[s].model.uses.size())) return std::nullopt;
    ++run.first_use, ++run.end_use;
    return fmt::format("virtual stage {} on pipeline stage {} begins with {}: expected {}", run.index, s,
                       use_name(stages[s], run.first_use), use_name(stages[s], run.first_use - 1));
  };
  all["one more tied use"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    VirtualStage& run = stages[s].stage.runs.front();
    if (run.index != 0 || !stages[s].stage.tied_ends) return std::nullopt;
    ++run.end_use;
    return fmt::format("virtual stage 1 on pipeline stage 0 begins with {}: expected {}",
                       use_name(stages[s], run.end_use - 1), use_name(stages[s], run.end_use));
  };
  return all;
}

std::map<std::string, Mutate> mutations_of_numbers_of_runs() {
  std::map<std::string, Mutate> all;
  all["another virtual stage"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    const int32_t wrong = ++stages[s].stage.runs.back().index;
    return fmt::format("in the plan of pipeline stage {}, the virtual stage is {}: expected {}", s, wrong, wrong - 1);
  };
  all["one more run"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    auto& runs = stages[s].stage.runs;
    runs.push_back(runs.back());
    return fmt::format("in the plan of pipeline stage {}, the number of virtual stages is {}: expected {}", s,
                       runs.size(), runs.size() - 1);
  };
  all["exchanged virtual stages"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    auto& runs = stages[s].stage.runs;
    if (stages[s].policy.virtual_stages < 2) return std::nullopt;
    VirtualStage &last = runs.back(), &before = runs[runs.size() - 2];
    std::swap(last.first_use, before.first_use);
    std::swap(last.end_use, before.end_use);
    return fmt::format("virtual stage {} on pipeline stage {} begins with {}: expected {}", before.index, s,
                       use_name(stages[s], before.first_use), use_name(stages[s], last.first_use));
  };
  all["a wrong number of virtual stages"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    const int32_t wrong = ++stages[s].stage.run_count;
    return fmt::format(
        "in the plan of pipeline stage {}, the number of virtual stages of the pipeline is {}: "
        "expected {}",
        s, wrong, wrong - 1);
  };
  all["no run"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    stages[s].stage.runs.clear();
    return fmt::format("in the plan of pipeline stage {}, the number of virtual stages is 0", s);
  };
  return all;
}

std::map<std::string, Mutate> mutations_of_stages() {
  std::map<std::string, Mutate> all;
  all["a wrong index"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    ++stages[s].stage.index;
    return fmt::format("in the plan of pipeline stage {}, the index of the pipeline stage is {}: expected {}", s, s + 1,
                       s);
  };
  all["a wrong count"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    ++stages[s].stage.count;
    return fmt::format("in the plan of pipeline stage {}, the number of pipeline stages is {}: expected {}", s,
                       stages.size() + 1, stages.size());
  };
  all["other tied ends"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    if (s == 0) return std::nullopt;
    bool& tied = stages[s].stage.tied_ends;
    tied = !tied;
    return fmt::format("in the plan of pipeline stage {}, the first and last uses of the model are {}tied", s,
                       tied ? "" : "not ");
  };
  all["other tied ends on all pipeline stages"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    if (s > 0) return std::nullopt;
    for (Plan& stage : stages) stage.stage.tied_ends = !stage.stage.tied_ends;
    return fmt::format("in the plan of pipeline stage {}, the number of virtual stages is {}", stages.size() - 1,
                       stages.back().stage.runs.size());
  };
  all["a missing pipeline stage"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    stages.erase(stages.begin() + static_cast<std::ptrdiff_t>(s));
    return fmt::format("in the plan of pipeline stage 0, the number of pipeline stages is {}: expected {}",
                       stages.size() + 1, stages.size());
  };
  return all;
}

std::map<std::string, Mutate> mutations_of_units() {
  std::map<std::string, Mutate> all;
  all["a unit on two pipeline stages"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    const std::size_t other = (s + 1) % stages.size(), unit = unit_on(stages[other]);
    stages[s].unit_is_here[unit] = true;
    return fmt::format("unit {} is on pipeline stage {}: expected it on pipeline stage {} alone",
                       unit_name(stages[s], unit), s, other);
  };
  all["a unit on no pipeline stage"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    const std::size_t unit = unit_on(stages[s]);
    stages[s].unit_is_here[unit] = false;
    return fmt::format("unit {} is not on pipeline stage {}: expected it on pipeline stage {} alone",
                       unit_name(stages[s], unit), s, s);
  };
  all["a unit that two pipeline stages use"] = [](Stages& stages, std::size_t s) -> std::optional<std::string> {
    if (s == 0) return std::nullopt;
    const int32_t use = stages[s].stage.last_use();
    const auto unit = static_cast<UnitId>(unit_on(stages[0]));
    if (std::ranges::count(stages[s].model.uses[use], unit) > 0) return std::nullopt;
    for (Plan& stage : stages) stage.model.uses[use].push_back(unit);
    return fmt::format("{} is on pipeline stage {}, but uses unit {} of pipeline stage 0", use_name(stages[s], use), s,
                       unit_name(stages[s], static_cast<std::size_t>(unit)));
  };
  return all;
}

/// Mutations of values that must be equal in the plans of all pipeline stages.
std::map<std::string, Mutate> mutations_of_models() {
  std::map<std::string, Mutate> all;
  const auto add = [&all](const std::string& kind, const std::string& what, std::function<void(Plan&)> change) {
    all[kind] = changed(what, [change = std::move(change)](Plan& plan) { return change(plan), true; });
  };
  add("one more unit", "in the plan of pipeline stage {}, the number of units",
      [](Plan& plan) { plan.model.units.push_back(plan.model.units.back()); });
  add("one use fewer", "in the plan of pipeline stage {}, the number of uses",
      [](Plan& plan) { plan.model.uses.pop_back(); });
  add("no entry of unit_is_here", "in the plan of pipeline stage {}, the number of entries of Plan::unit_is_here",
      [](Plan& plan) { plan.unit_is_here.clear(); });
  add("another parameter", "unit u1 (unit 1 of the model)" + differs, [](Plan& plan) {
    plan.model.units[1].parameters.push_back({.tensor = {"new", {3}}});
    plan.model.units[1].name = "u1";
  });
  add("another order of uses", "of the plan of pipeline stage {} has other units: expected use 0",
      [](Plan& plan) { std::swap(plan.model.uses[0], plan.model.uses[1]); });
  add("other activations", "the declaration of activations" + differs,
      [](Plan& plan) { plan.model.activations.uses[0].kept_bytes += 4; });
  add("another option", "the policy" + differs, [](Plan& plan) { ++plan.policy.prefetch; });
  add("another number of micro-batches", "in the plan of pipeline stage {}, the number of micro-batches",
      [](Plan& plan) { ++plan.schedule.micro_batch_count; });
  add("another number of pipeline stages in the options",
      "in the plan of pipeline stage {}, the number of pipeline stages in the mesh",
      [](Plan& plan) { ++plan.policy.pipeline; });
  add("another number of micro-batches in the options",
      "in the plan of pipeline stage {}, the number of micro-batches in the options",
      [](Plan& plan) { ++plan.policy.micro_batch_count; });
  add("another sum of micro-batches", "Schedule::accumulate_into_shard" + differs,
      [](Plan& plan) { plan.schedule.accumulate_into_shard = !plan.schedule.accumulate_into_shard; });
  add("another ZeRO stage", "in the plan of pipeline stage {}, the ZeRO stage",
      [](Plan& plan) { plan.schedule.zero_stage = (plan.schedule.zero_stage + 1) % 4; });
  add("another chunk size", "in the plan of pipeline stage {}, the size of the staging memory",
      [](Plan& plan) { plan.schedule.stream_bytes += 4; });
  add("one more replica", "in the plan of pipeline stage {}, the number of replicas",
      [](Plan& plan) { ++plan.policy.replica_count; });
  add("one rank more in a tensor group", "in the plan of pipeline stage {}, the number of ranks in a tensor group",
      [](Plan& plan) { ++plan.policy.tensor; });
  add("one rank more in a shard group", "in the plan of pipeline stage {}, the number of ranks in a shard group",
      [](Plan& plan) {
        plan.topology.node_of_rank.push_back(0);
        plan.topology.gpu_of_rank.push_back(-1);
      });
  add("another world", "the topology of the world" + differs, [](Plan& plan) { plan.world.gpu_of_rank.back() = 1; });
  add("another topology of the ranks with one tensor coordinate",
      "pipeline stage {}, the topology of the ranks with tensor coordinate 0 is",
      [](Plan& plan) { plan.data_topology.gpu_of_rank.back() = 1; });
  add("another topology of a replica", "pipeline stage {}, the topology of a replica is",
      [](Plan& plan) { plan.topology.gpu_of_rank.back() = 1; });
  return all;
}

TEST(ValidateCut, ReportsEveryDefectOfARun) { expect_reports(mutations_of_runs(), true); }
TEST(ValidateCut, ReportsEveryWrongNumberOfRuns) { expect_reports(mutations_of_numbers_of_runs(), true); }
TEST(ValidateCut, ReportsEveryDefectOfAPipelineStage) { expect_reports(mutations_of_stages(), true); }
TEST(ValidateCut, ReportsEveryDefectOfAUnit) { expect_reports(mutations_of_units(), true); }
TEST(ValidateCut, ReportsEveryDifferenceOfAModel) { expect_reports(mutations_of_models(), true); }

/// The plan of the last pipeline stage is made for a model without the last use. Its schedule contains exactly the uses
/// that this plan lists, and every send has a receive.
TEST(ValidateCut, ReportsAUseThatNoPipelineStagePlanned) {
  Policy policy{.zero_stage = 2, .micro_batch_count = 4, .pipeline = 2, .pipeline_cut = {2, 3}};
  Stages stages = plan_pipeline(chain_with_activations(5), policy, testing::hosts(4, 4));
  policy.pipeline_cut = {2, 2};
  Plan shorter = plan_pipeline(chain_with_activations(4), policy, testing::hosts(4, 4)).back();
  shorter.model = stages.back().model;
  shorter.policy = stages.back().policy;
  shorter.flats = stages.back().flats;
  shorter.flats_of_unit = stages.back().flats_of_unit;
  shorter.schedule.stream_bytes = stages.back().schedule.stream_bytes;
  shorter.unit_is_here.push_back(false);
  stages.back() = shorter;
  link_stages(stages);
  const auto defects = validate_stages(stages);
  ASSERT_EQ(defects.size(), 1U) << sentences(defects);
  EXPECT_EQ(defects.front().sentence,
            "the last virtual stage ends with use 3 (h.3) on pipeline stage 1: expected use 4 (h.4)");
}

TEST(ValidateCut, AcceptsAModelWithoutPipeline) {
  const Stages stages = plan_pipeline(chain(3), {}, hosts(2, 2));
  EXPECT_EQ(sentences(validate_stages(stages)), "");
}

}  // namespace
}  // namespace aliquot
