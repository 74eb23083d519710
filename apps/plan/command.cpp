// aliquot plan: predicts memory, traffic and step time of a run, without running it.
#include <fmt/format.h>
#include <fstream>
#include <utility>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/models/activations.h"
#include "apps/models/parameters.h"
#include "apps/options/train_options.h"
#include "apps/plan/machine.h"
#include "apps/plan/plan_json.h"
#include "apps/plan/plan_options.h"
#include "apps/plan/plan_text.h"
#include "apps/plan/use_costs.h"
#include "engine/choose/budget.h"
#include "engine/choose/pipeline_schedule.h"
#include "engine/cost/trace.h"
#include "engine/plan/pipeline.h"
#include "kernels/system/error.h"
#include "kernels/system/format_bytes.h"

namespace aliquot {
namespace {

/// Without `keeps_logits`, backward computes the logits again.
ModelSpec model_of(const PlanOptions& o, const Machine& machine, const ModelShape& shape, bool keeps_logits = true) {
  const TensorGroup tensor = tensor_group(o, o.engine, 0);
  check_tensor_group(shape, tensor);
  ModelSpec model = parameters_of(shape, tensor);
  ModelOptions options = {.batch = o.micro_batch,
                          .sequence = o.sequence.value_or(0),
                          .compute = *o.precision,
                          .gradient_type = o.engine.precision.gradients,
                          .tensor = tensor};
  options.keep_logits = keeps_logits;
  const DeviceKind device = machine.has_gpus ? DeviceKind::kCuda : DeviceKind::kHost;
  model.activations = activations_of(shape, options, device, o.world.threads_per_rank);
  return model;
}

ModelSpec model_of(const PlanOptions& o, const Machine& machine, bool keeps_logits = true) {
  if (!o.params) return model_of(o, machine, model_shape(o), keeps_logits);
  if (o.has_shape_options())
    throw UsageError("--params cannot be combined with --model or a shape option: leave out one of them.");
  if (o.engine.recompute != 0 && o.engine.recompute != kRecomputeAsNeeded) {
    throw UsageError("--recompute " + option_text(o, "recompute") +
                     " needs the layers of a model, and --params gives only a number of parameters: use --model.");
  }
  if (o.lora.rank > 0)
    throw UsageError(
        "--lora needs the layers of a model, and --params gives only a number of parameters: use --model.");
  if (o.engine.tensor > 1)
    throw UsageError(
        "--tensor needs the layers of a model, and --params gives only a number of parameters: use --model.");
  if (o.optimizer.kind == OptimizerKind::kMuon)
    throw UsageError(
        "--optimizer muon needs the matrices of a model, and --params gives only a number of parameters: use --model.");
  return make_equal_units(*o.params, o.units);
}

/// The memory of a rank: --memory-budget, else --device-memory, else that of --machine, else that of this machine.
std::optional<RankMemoryLimit> memory_limit(const PlanOptions& o, const Machine& machine) {
  if (o.memory_budget) return RankMemoryLimit{*o.memory_budget, "--memory-budget"};
  if (o.device_memory) return RankMemoryLimit{*o.device_memory, "--device-memory"};
  const auto bytes = rank_memory_bytes(machine, ranks_per_node(o));
  if (!bytes) return std::nullopt;
  const std::string name = machine.name == "host" ? "this machine" : machine.name;
  if (machine.has_gpus) return RankMemoryLimit{*bytes, "a GPU of " + name};
  return RankMemoryLimit{*bytes,
                         fmt::format("{}, which has {} for {} rank{}", name, format_bytes(*machine.memory_bytes),
                                     ranks_per_node(o), ranks_per_node(o) == 1 ? "" : "s")};
}

/// Plans all pipeline stages as `aliquot train` does. If micro-batches accumulate in the full gradients, backward adds
/// to the gradients of all units.
std::vector<Plan> plans_of(const MemoryLimit& limit, ModelSpec model, const Policy& policy, const Topology& topology,
                           const CostModel& cost) {
  if (policy.micro_batch_count > 1 && !accumulates_into_shard(policy)) {
    for (UnitSpec& unit : model.units) unit.gradients = GradientMode::kAdd;
  }
  return choose_plans(limit, model, policy, topology, cost);
}

/// Plans within --memory-budget, as `aliquot train` does: first with plans that keep all logits. Returns an empty list,
/// and sets `refusal` to the reason, if no plan meets the budget.
std::vector<Plan> plans_within_budget(const PlanOptions& o, const Machine& machine, const Policy& policy,
                                      const CostModel& cost, std::string& refusal) {
  const Topology topology = topology_of(o, machine.has_gpus);
  for (const bool keeps_logits : {true, false}) {
    try {
      std::vector<Plan> stages = plans_of({*o.memory_budget, MemoryLimit::kBudget}, model_of(o, machine, keeps_logits),
                                          policy, topology, cost);
      for (Plan& stage : stages) {
        if (!keeps_logits && !stage.choice.empty()) stage.choice += "; logits are computed twice, tile by tile";
      }
      return stages;
    } catch (const UnavailableError& error) {
      refusal = error.what();
    }
  }
  return {};
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
  const std::vector<bool> windows = std::move(shape.window_layers);
  shape.layers = scale;
  // Repeats the pattern of layers with a sliding window.
  shape.window_layers.clear();
  for (size_t layer = 0; !windows.empty() && layer < static_cast<size_t>(scale); ++layer)
    shape.window_layers.push_back(windows[layer % windows.size()]);
  return model_of(o, machine, shape);
}

CostModel cost_of(const PlanOptions& o, const Machine& machine, const ModelShape& shape) {
  return cost_of(machine, shape, {o.micro_batch, o.sequence.value_or(shape.context), o.engine.tensor});
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
    const auto stages = plans_of({*o.device_memory, MemoryLimit::kPreferred}, model, policy, topology, cost);
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
  Policy policy = policy_of(o, stage);
  const ModelSpec model = model_of(o, machine);
  const int64_t sequence = o.sequence.value_or(o.params ? 1024 : model_shape(o).context);
  CostModel cost = o.params ? machine.cost : cost_of(o, machine, model_shape(o));
  cost.samples_per_micro_batch = static_cast<double>(o.micro_batch * sequence);
  if (!o.profile.empty()) apply_profile(cost, o.profile, {o.micro_batch, sequence, o.engine.tensor});
  const auto limit = memory_limit(o, machine);
  std::vector<Plan> stages;
  std::string refusal;
  if (o.memory_budget) stages = plans_within_budget(o, machine, policy, cost, refusal);
  // Without --machine, the plan may be for another machine than this one, so its memory affects no choice.
  const bool prefers = limit && (o.device_memory || !o.machine.empty());
  if (stages.empty()) {
    stages = plans_of({prefers ? limit->bytes : 0, MemoryLimit::kPreferred}, model, policy,
                      topology_of(o, machine.has_gpus), cost);
  }
  PlannedRun outcome{.plan = largest(stages),
                     .account = {},
                     .timeline = {},
                     .stages = std::move(stages),
                     .timelines = {},
                     .parameters = parameter_count(model),
                     .limit = limit,
                     .refusal = refusal};
  outcome.account = account(outcome.plan.schedule);
  outcome.timelines = simulate(outcome.stages, cost);
  outcome.timeline = outcome.timelines[static_cast<std::size_t>(outcome.plan.stage.index)];
  // Adds the traffic of all pipeline stages that have ranks on the first node.
  outcome.timeline.crossing_bytes = 0;
  for (std::size_t s = 0; s < outcome.stages.size(); ++s) {
    const Plan& plan = outcome.stages[s];
    const std::size_t first = s * plan.world.node_of_rank.size() / outcome.stages.size();
    if (plan.world.node_of_rank[first] == 0) outcome.timeline.crossing_bytes += outcome.timelines[s].crossing_bytes;
  }
  outcome.tokens = static_cast<double>(o.micro_batch * sequence * o.engine.accumulate *
                                       data_rank_count(o.engine, static_cast<int>(o.ranks)));
  if (o.device_memory) {
    policy.pipeline_schedule = outcome.plan.policy.pipeline_schedule;
    policy.virtual_stages = outcome.plan.policy.virtual_stages;
    outcome.largest = largest_that_fits(o, machine, policy);
  }
  return outcome;
}

void write_trace_file(const PlanOptions& o, const PlannedRun& outcome) {
  std::ofstream file(o.trace);
  write_trace(file, simulated_traces(outcome));
  if (!file.flush()) throw UsageError("--trace " + o.trace + ": the file could not be written.");
}

void write_order_file(const PlanOptions& o, const PlannedRun& outcome) {
  std::ofstream file(o.pipeline_order);
  file << text(pass_order_of(outcome.plan.policy));
  if (!file.flush()) throw UsageError("--pipeline-order " + o.pipeline_order + ": the file could not be written.");
}

}  // namespace

CommandHelp plan_help() {
  PlanOptions options;
  return {.name = "plan",
          .summary = "predict memory, traffic and step time of a run, without running it",
          .usage = "[--option value ...]",
          .text =
              "Predicts the memory of a rank by category and its traffic per step. With --machine or --pipeline, "
              "also simulates the time of a step. States whether a rank has enough memory: that of the GPUs or hosts "
              "of --machine or, by default, of this machine. Does not train. Counts the activations of the built-in "
              "models, "
              "for GPUs if --machine has GPUs and otherwise for a host. With --params the activations are unknown "
              "and not counted.",
          .options = help_options(plan_option_table(options)),
          .subcommands = {},
          .exit_codes = {0, 1, 3}};
}

int run_plan(const Arguments& arguments) {
  PlanOptions options;
  const OptionTable table = plan_option_table(options);
  const std::vector<GivenOption> given = read_arguments(table, arguments);
  set_options(table, given);
  check_tensor_optimizer(options);
  const auto rows = std::ranges::find(given, "sequence-parallel", &GivenOption::name);
  if (rows != given.end() && options.engine.tensor == 1) warn("{} has no effect without --tensor.", rows->where);
  const Machine machine = find_machine(machine_name(options));
  resolve_precision(options, machine.has_gpus);
  std::vector<Json> plans;
  std::vector<PlannedRun> outcomes;
  for (const int stage : stages_of(options)) {
    outcomes.push_back(plan_run(options, machine, stage));
    plans.push_back(plan_json(options, outcomes.back()));
  }
  if (options.format == "text") write_stream(stdout, plan_text(options, outcomes));
  if (options.format == "json") write_stdout("{}\n", Json{{"plans", plans}}.dump(2));
  if (options.format == "csv") write_stream(stdout, plan_csv(plans));
  if (!options.pipeline_order.empty()) write_order_file(options, outcomes.back());
  if (!options.trace.empty()) write_trace_file(options, outcomes.back());
  if (!options.metrics.empty()) write_plan_metrics(options, outcomes);
  return 0;
}

}  // namespace aliquot
