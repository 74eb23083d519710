// aliquot plan: predicts memory, traffic and step time of a run, without running it.
#include <fmt/format.h>
#include <fstream>
#include <utility>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/metrics/metrics.h"
#include "apps/models/activations.h"
#include "apps/models/parameters.h"
#include "apps/plan/machine.h"
#include "apps/plan/plan_options.h"
#include "apps/plan/plan_text.h"
#include "apps/plan/use_costs.h"
#include "apps/train/reporting/memory_table.h"
#include "engine/choose/budget.h"
#include "engine/choose/pipeline_cut.h"
#include "engine/cost/trace.h"
#include "engine/plan/pipeline.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

ModelSpec model_of(const PlanOptions& o, const Machine& machine, const ModelShape& shape) {
  ModelSpec model = parameters_of(shape);
  const ModelOptions options = {.batch = o.micro_batch,
                                .sequence = o.sequence.value_or(0),
                                .compute = *o.precision,
                                .gradient_type = o.engine.precision.gradients};
  const DeviceKind device = machine.has_gpus ? DeviceKind::kCuda : DeviceKind::kHost;
  model.activations = activations_of(shape, options, device, o.world.threads_per_rank);
  return model;
}

ModelSpec model_of(const PlanOptions& o, const Machine& machine) {
  if (!o.params) return model_of(o, machine, model_shape(o));
  if (o.has_shape_options())
    throw UsageError("--params cannot be combined with --model or a shape option: leave out one of them.");
  if (o.engine.recompute != 0 && o.engine.recompute != kRecomputeAsNeeded) {
    throw UsageError("--recompute " + option_text(o, "recompute") +
                     " needs the layers of a model, and --params gives only a number of parameters: use --model.");
  }
  if (o.optimizer.kind == OptimizerKind::kMuon)
    throw UsageError(
        "--optimizer muon needs the matrices of a model, and --params gives only a number of parameters: use --model.");
  return make_equal_units(*o.params, o.units);
}

/// Plans all pipeline stages as `aliquot train` does. If micro-batches accumulate in the full gradients, backward adds
/// to the gradients of all units.
std::vector<Plan> plans_of(ModelSpec model, Policy policy, const Topology& topology, const CostModel& cost) {
  if (policy.micro_batch_count > 1 && !accumulates_into_shard(policy)) {
    for (UnitSpec& unit : model.units) unit.gradients = GradientMode::kAdd;
  }
  if (policy.pipeline > 1 && policy.pipeline_cut.empty()) policy.pipeline_cut = cut_pipeline(model, policy, cost);
  return plan_pipeline(model, policy, topology);
}

/// Returns the plan with the highest peak, and the first of them if several have this peak.
const Plan& largest(const std::vector<Plan>& stages) {
  return *std::ranges::max_element(stages, {}, [](const Plan& plan) { return account(plan.schedule).peak_bytes; });
}

/// Returns the model with `scale` layers. With --params, returns a model with `scale` million parameters and the number
/// of units that --units gives.
ModelSpec scaled(const PlanOptions& o, const Machine& machine, int64_t scale) {
  if (o.params) return make_equal_units(scale * 1'000'000, o.units);
  ModelShape shape = model_shape(o);
  shape.layers = scale;
  return model_of(o, machine, shape);
}

/// The machine's rates, and the times of the uses of a model.
CostModel cost_of(const PlanOptions& o, const Machine& machine, const ModelShape& shape) {
  CostModel cost = machine.cost;
  const int64_t sequence = o.sequence.value_or(shape.context);
  cost.samples_per_micro_batch = static_cast<double>(o.micro_batch * sequence);
  cost.uses = estimate_use_costs(shape, o.micro_batch, sequence, cost.flops_per_second);
  return cost;
}

/// Whether the model has fewer uses than virtual stages. If the first uses are tied to the last use, they do not count,
/// because the first virtual stage needs a use that is not tied.
bool too_few_uses(const ModelSpec& model, const Policy& policy) {
  if (policy.pipeline == 1) return false;
  const int64_t stages = virtual_stage_count(policy), uses = std::ssize(model.uses);
  return uses < stages ||
         uses - tied_uses(model, static_cast<int32_t>(uses - 1), static_cast<int32_t>(uses - 1)) < stages;
}

/// Returns the number of parameters of the largest model that fits in --device-memory, or 0 if no model fits. A binary
/// search finds this model, because memory grows with the size of the model. Each size has its own pipeline cut, which
/// depends on the times of the uses.
int64_t largest_that_fits(const PlanOptions& o, const Machine& machine, Policy policy) {
  const Topology topology = topology_of(o, machine.has_gpus);
  policy.pipeline_cut.clear();
  const auto fits = [&](int64_t scale) {
    ModelShape shape = o.params ? ModelShape{} : model_shape(o);
    shape.layers = scale;
    const CostModel cost = o.params ? machine.cost : cost_of(o, machine, shape);
    const ModelSpec model = scaled(o, machine, scale);
    if (too_few_uses(model, policy)) return true;  // a larger model may have enough uses
    const auto stages = plans_of(model, policy, topology, cost);
    return std::ranges::all_of(stages, [&](const Plan& plan) { return rank_bytes(plan) <= *o.device_memory; });
  };
  const int64_t limit = o.params ? 100'000'000 : 10'000;
  int64_t fit = 0, next = 1;
  while (next <= limit && fits(next)) fit = next, next *= 2;
  for (int64_t low = fit, high = std::min(next, limit + 1); high - low > 1;) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
    fit = low;
  }
  if (fit == 0) return 0;
  const ModelSpec largest = scaled(o, machine, fit);
  return too_few_uses(largest, policy) ? 0 : parameter_count(largest);
}

PlannedRun plan_run(const PlanOptions& o, const Machine& machine, int stage) {
  const Policy policy = policy_of(o, stage);
  const ModelSpec model = model_of(o, machine);
  const int64_t sequence = o.sequence.value_or(o.params ? 1024 : model_shape(o).context);
  CostModel cost = o.params ? machine.cost : cost_of(o, machine, model_shape(o));
  cost.samples_per_micro_batch = static_cast<double>(o.micro_batch * sequence);
  if (!o.profile.empty()) cost.uses = read_profile(o.profile, o.micro_batch, sequence);
  std::vector<Plan> stages = plans_of(model, policy, topology_of(o, machine.has_gpus), cost);
  PlannedRun outcome{.plan = largest(stages),
                     .account = {},
                     .timeline = {},
                     .stages = std::move(stages),
                     .timelines = {},
                     .parameters = parameter_count(model)};
  outcome.account = account(outcome.plan.schedule);
  outcome.timelines = simulate(outcome.stages, cost);
  outcome.timeline = outcome.timelines[static_cast<std::size_t>(outcome.plan.stage.index)];
  // Adds the traffic of all pipeline stages that have ranks on the first node.
  outcome.timeline.crossing_bytes = 0;
  for (std::size_t s = 0; s < outcome.stages.size(); ++s) {
    const Plan& plan = outcome.stages[s];
    const std::size_t first = s * static_cast<std::size_t>(plan.stage_topology.rank_count());
    if (plan.world.node_of_rank[first] == 0) outcome.timeline.crossing_bytes += outcome.timelines[s].crossing_bytes;
  }
  outcome.tokens = static_cast<double>(o.micro_batch * sequence * o.engine.accumulate * o.ranks / o.engine.pipeline);
  if (o.device_memory) outcome.largest = largest_that_fits(o, machine, policy);
  return outcome;
}

Json to_json(const PlanOptions& o, const PlannedRun& outcome) {
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
  if (outcome.largest) one["largest_parameters"] = *outcome.largest;
  for (const Plan& plan : outcome.stages) {
    if (outcome.stages.size() == 1) break;
    const Account stage = account(plan.schedule);
    Json memory_of_stage = json(stage.peak);
    memory_of_stage["peak"] = stage.peak_bytes;
    Json of_stage = {{"uses", plan.stage.use_count()},
                     {"memory", memory_of_stage},
                     {"rank_bytes", rank_bytes(plan)},
                     {"operations", plan.schedule.operations.size()}};
    if (!o.machine.empty())
      of_stage["idle_share"] = outcome.timelines[static_cast<std::size_t>(plan.stage.index)].idle_share();
    one["stages"].push_back(std::move(of_stage));
  }
  if (!o.machine.empty()) {
    one["step_seconds"] = outcome.timeline.step_seconds;
    one["hidden_share"] = outcome.timeline.hidden_share();
    one["tokens_per_second"] = outcome.tokens / outcome.timeline.step_seconds;
  }
  return one;
}

/// One row per plan; nested keys are joined by dots.
void print_csv(const std::vector<Json>& plans) {
  const auto row = [](const Json& plan, bool names) {
    std::string line;
    const Json flat = plan.flatten();
    for (const auto& [key, value] : flat.items()) {
      std::string cell = names ? key.substr(1) : value.is_string() ? value.get<std::string>() : value.dump();
      std::ranges::replace(cell, '/', '.');
      line += (line.empty() ? "" : ",") + cell;
    }
    write_stdout("{}\n", line);
  };
  row(plans.front(), true);
  for (const Json& plan : plans) row(plan, false);
}

void write_trace_file(const PlanOptions& o, const PlannedRun& outcome) {
  std::ofstream file(o.trace);
  std::vector<RankTrace> stages;
  for (std::size_t s = 0; s < outcome.stages.size(); ++s) stages.push_back({&outcome.stages[s], outcome.timelines[s]});
  write_trace(file, stages);
  if (!file.flush()) throw UsageError("--trace " + o.trace + ": the file could not be written.");
}

void write_order_file(const PlanOptions& o, const PlannedRun& outcome) {
  std::ofstream file(o.pipeline_order);
  file << text(pass_order_of(outcome.plan.policy));
  if (!file.flush()) throw UsageError("--pipeline-order " + o.pipeline_order + ": the file could not be written.");
}

}  // namespace

int run_plan(const Arguments& arguments) {
  PlanOptions options;
  const OptionTable table = plan_option_table(options);
  if (wants_help(arguments)) {
    write_stdout(
        "aliquot plan [--option value ...]\n\n"
        "Predicts the memory of a rank by category and its traffic per step. With --machine, also simulates the time\n"
        "of a step. Does not train. Counts the activations of the built-in models, for GPUs if --machine has GPUs and\n"
        "otherwise for a host. With --params the activations are unknown and not counted.\n\n{}",
        option_help(table));
    return 0;
  }
  parse_arguments(table, arguments);
  const Machine machine = find_machine(options.machine.empty() ? "host" : options.machine);
  std::vector<Json> plans;
  std::vector<PlannedRun> outcomes;
  for (const int stage : stages_of(options)) {
    outcomes.push_back(plan_run(options, machine, stage));
    plans.push_back(to_json(options, outcomes.back()));
  }
  if (options.format == "text") write_stream(stdout, plan_text(options, outcomes));
  if (options.format == "json") write_stdout("{}\n", Json{{"plans", plans}}.dump(2));
  if (options.format == "csv") print_csv(plans);
  if (!options.pipeline_order.empty()) write_order_file(options, outcomes.back());
  if (!options.trace.empty()) write_trace_file(options, outcomes.back());
  return 0;
}

}  // namespace aliquot
