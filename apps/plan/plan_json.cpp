#include "apps/plan/plan_json.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/metrics/pipeline_step.h"
#include "apps/plan/pipeline_figures.h"
#include "apps/train/reporting/memory_table.h"
#include "engine/choose/budget.h"

namespace aliquot {
namespace {

Json stage_json(const Plan& plan, const StageFigures& figures) {
  const Account stage = account(plan.schedule);
  Json memory = json(stage.peak);
  memory["peak"] = stage.peak_bytes;
  return {{"uses", figures.use_count},
          {"memory", memory},
          {"rank_bytes", rank_bytes(plan)},
          {"operations", plan.schedule.operations.size()},
          {"idle_share", figures.bubble_share},  // the former name of bubble_share
          {"parameters", figures.parameter_count},
          {"activations_in_flight", figures.activations_in_flight},
          {"compute_seconds", figures.compute_seconds},
          {"bubble_share", figures.bubble_share},
          {"transfer_share", figures.transfer_share},
          {"node_link_share", figures.node_link_share}};
}

}  // namespace

Json plan_json(const PlanOptions& o, const PlannedRun& outcome) {
  Json memory = json(outcome.account.peak);
  memory["peak"] = outcome.account.peak_bytes;
  Json one = {{"zero_stage", outcome.plan.schedule.zero_stage},
              {"ranks", o.ranks},
              {"parameters", outcome.parameters},
              {"memory", memory},
              {"offloaded", outcome.account.elsewhere_bytes},
              {"peak_operation", peak_moment(outcome.plan, outcome.account)},
              {"rank_bytes", rank_bytes(outcome.plan)},
              {"sent_bytes", outcome.timeline.sent_bytes},
              {"received_bytes", outcome.timeline.received_bytes},
              {"crossing_bytes", outcome.timeline.crossing_bytes},
              {"operations", outcome.plan.schedule.operations.size()}};
  if (o.engine.tensor > 1) {
    one["tensor"] = o.engine.tensor;
    one["tensor_groups_cross_nodes"] = tensor_groups_cross_nodes(outcome.plan.world, o.engine.tensor);
  }
  if (outcome.limit) {
    one["memory_limit"] = outcome.limit->bytes;
    one["fits"] = outcome.fits();
  }
  if (outcome.largest) one["largest_parameters"] = *outcome.largest;
  if (outcome.stages.size() > 1) {
    const std::vector<StageFigures> figures = stage_figures(outcome);
    for (std::size_t s = 0; s < figures.size(); ++s) one["stages"].push_back(stage_json(outcome.stages[s], figures[s]));
    one["bubble_share"] = bubble_share(outcome);
    one["pipeline_schedule"] = name(outcome.plan.policy.pipeline_schedule);
    one["virtual_stages"] = outcome.plan.policy.virtual_stages;
    if (const auto formula = bubble_formula(outcome.plan.policy)) one["formula_bubble_share"] = formula->share;
  }
  if (!outcome.plan.choice.empty()) one["choice"] = outcome.plan.choice;
  if (is_timed(o, outcome)) {
    one["step_seconds"] = outcome.timeline.step_seconds;
    one["hidden_share"] = outcome.timeline.hidden_share();
    one["tokens_per_second"] = outcome.tokens / outcome.timeline.step_seconds;
  }
  return one;
}

std::string plan_csv(const std::vector<Json>& plans) {
  const auto row = [](const Json& plan, bool names) {
    std::string line;
    const Json flat = plan.flatten();
    for (const auto& [key, value] : flat.items()) {
      std::string cell = names ? key.substr(1) : value.is_string() ? value.get<std::string>() : value.dump();
      std::ranges::replace(cell, '/', '.');
      line += (line.empty() ? "" : ",") + cell;
    }
    return line + "\n";
  };
  std::string text = row(plans.front(), true);
  for (const Json& plan : plans) text += row(plan, false);
  return text;
}

std::vector<RankTrace> simulated_traces(const PlannedRun& outcome) {
  std::vector<RankTrace> traces;
  for (std::size_t s = 0; s < outcome.stages.size(); ++s) {
    const std::string name = outcome.stages.size() == 1 ? "rank 0" : fmt::format("pipeline stage {}", s);
    traces.push_back({&outcome.stages[s], outcome.timelines[s], name});
  }
  return traces;
}

void write_plan_metrics(const PlanOptions& o, std::span<const PlannedRun> outcomes) {
  MetricsFile file(o.metrics, MetricsFile::Mode::kTruncate);
  for (const PlannedRun& outcome : outcomes) {
    Json plan = plan_json(o, outcome);
    plan["machine"] = machine_name(o);
    if (outcome.stages.size() > 1) plan["pipeline"] = pipeline_json(simulated_traces(outcome));
    file.write({{"plan", plan}});
  }
}

}  // namespace aliquot
