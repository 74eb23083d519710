#include "apps/plan/planned_run.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "apps/models/activations.h"
#include "apps/models/parameters.h"
#include "apps/options/train_options.h"
#include "apps/plan/use_costs.h"
#include "engine/choose/budget.h"
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
  model.activations = activations_of(shape, options, {device, o.world.threads_per_rank, o.products, o.attention});
  return model;
}

}  // namespace

ModelSpec model_of(const PlanOptions& o, const Machine& machine, bool keeps_logits) {
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
  if (o.attention == AttentionKernels::kCudnn)
    throw UsageError(
        "--attention needs the layers of a model, and --params gives only a number of parameters: use --model.");
  if (o.engine.tensor > 1)
    throw UsageError(
        "--tensor needs the layers of a model, and --params gives only a number of parameters: use --model.");
  if (o.optimizer.kind == OptimizerKind::kMuon)
    throw UsageError(
        "--optimizer muon needs the matrices of a model, and --params gives only a number of parameters: use --model.");
  return make_equal_units(*o.params, o.units);
}

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

ModelSpec with_added_gradients(ModelSpec model, const Policy& policy) {
  if (policy.micro_batch_count > 1 && !accumulates_into_shard(policy)) {
    for (UnitSpec& unit : model.units) unit.gradients = GradientMode::kAdd;
  }
  return model;
}

std::vector<Plan> plans_of(const MemoryLimit& limit, ModelSpec model, const Policy& policy, const Topology& topology,
                           const CostModel& cost) {
  return choose_plans(limit, with_added_gradients(std::move(model), policy), policy, topology, cost);
}

namespace {

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

int64_t sequence_of(const PlanOptions& o) { return o.sequence.value_or(o.params ? 1024 : model_shape(o).context); }

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

}  // namespace

CostModel cost_of(const PlanOptions& o, const Machine& machine) {
  const int64_t sequence = sequence_of(o);
  CostModel cost = o.params ? machine.cost : cost_of(o, machine, model_shape(o));
  cost.samples_per_micro_batch = static_cast<double>(o.micro_batch * sequence);
  if (!o.profile.empty()) apply_profile(cost, o.profile, {o.micro_batch, sequence, o.engine.tensor});
  return cost;
}

int64_t crossing_bytes_of_first_node(const std::vector<Plan>& stages, const std::vector<Timeline>& timelines) {
  int64_t bytes = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Topology& world = stages[s].world;
    const std::size_t first = s * world.node_of_rank.size() / stages.size();
    if (world.node_of_rank[first] == 0) bytes += timelines[s].crossing_bytes;
  }
  return bytes;
}

PlannedRun plan_run(const PlanOptions& o, const Machine& machine, int stage) {
  Policy policy = policy_of(o, stage);
  const ModelSpec model = model_of(o, machine);
  const CostModel cost = cost_of(o, machine);
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
  outcome.timeline.crossing_bytes = crossing_bytes_of_first_node(outcome.stages, outcome.timelines);
  outcome.tokens = static_cast<double>(o.micro_batch * sequence_of(o) * o.engine.accumulate *
                                       data_rank_count(o.engine, static_cast<int>(o.ranks)));
  if (o.device_memory) {
    policy.pipeline_schedule = outcome.plan.policy.pipeline_schedule;
    policy.virtual_stages = outcome.plan.policy.virtual_stages;
    outcome.largest = largest_that_fits(o, machine, policy);
  }
  return outcome;
}

}  // namespace aliquot
