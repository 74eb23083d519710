#include "apps/plan/mesh_model.h"

#include <algorithm>

#include "apps/plan/planned_run.h"
#include "engine/cost/link_prices.h"
#include "engine/plan/use_collectives.h"

namespace aliquot {
namespace {

/// Returns the time of the collectives that an operation of model code runs.
double collective_seconds(const CostModel& cost, const UseActivations& use, Verb verb, int tensor) {
  if (tensor == 1) return 0;
  double seconds = 0;
  for (auto next = next_collective(use, verb); next; next = next_collective(use, verb, *next)) {
    const UseCollective& what = use.collectives[static_cast<std::size_t>(*next)];
    const int64_t part = what.rows_per_part(tensor) * what.row_elements * element_bytes(what.dtype);
    seconds += tensor_collective_seconds(cost, tensor, what.kind, part);
  }
  return seconds;
}

}  // namespace

int64_t elements_of(const UnitSpec& unit, int tensor, bool only_trained) {
  int64_t elements = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    if (only_trained && !parameter.tensor.trainable) continue;
    elements += parameter.tensor.element_count() / (parameter.split.dimension >= 0 ? tensor : 1);
  }
  return elements;
}

MeshModel::Sums MeshModel::of(const VirtualStage& run) const {
  const Sums &first = before[static_cast<std::size_t>(run.first_use)],
             &end = before[static_cast<std::size_t>(run.end_use)];
  return {.forward_seconds = end.forward_seconds - first.forward_seconds,
          .backward_seconds = end.backward_seconds - first.backward_seconds,
          .recompute_seconds = end.recompute_seconds - first.recompute_seconds,
          .elements = end.elements - first.elements,
          .trained_elements = end.trained_elements - first.trained_elements,
          .recomputable = end.recomputable - first.recomputable};
}

MeshModel mesh_model(const PlanOptions& options, const Machine& machine) {
  MeshModel made{.model = model_of(options, machine),
                 .cost = cost_of(options, machine),
                 .before = {},
                 .splits = {},
                 .recompute_seconds = -1};
  const ModelSpec& model = made.model;
  const int tensor = options.engine.tensor;
  std::vector<std::size_t> last_use(model.units.size(), 0);
  std::vector<int> use_count(model.units.size(), 0);
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    for (const UnitId unit : model.uses[use]) {
      last_use[unit] = use;
      ++use_count[unit];
    }
  }
  MeshModel::Sums sum;
  made.before.push_back(sum);
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    const UseActivations& of = model.activations.uses[use];
    const auto seconds = [&](Verb verb) {
      return model_seconds(model, made.cost, static_cast<int32_t>(use), verb) +
             collective_seconds(made.cost, of, verb, tensor);
    };
    sum.forward_seconds += seconds(Verb::kForward);
    sum.backward_seconds += seconds(Verb::kBackward);
    for (const UnitId unit : model.uses[use]) {
      if (last_use[unit] != use) continue;
      const int64_t elements = elements_of(model.units[unit], tensor);
      sum.elements += elements;
      sum.trained_elements += elements_of(model.units[unit], tensor, true);
      made.largest_unit = std::max(made.largest_unit, elements);
    }
    if (of.recomputable) {
      const double again = seconds(Verb::kRecompute);
      sum.recompute_seconds += again;
      made.recompute_seconds = made.recompute_seconds < 0 ? again : std::min(made.recompute_seconds, again);
      ++sum.recomputable;
    }
    const auto trains = [&](UnitId unit) { return elements_of(model.units[unit], 1, true) > 0; };
    const auto is_used_once = [&](UnitId unit) { return use_count[unit] == 1; };
    made.splits.push_back(of.splits_backward && std::ranges::any_of(model.uses[use], trains) &&
                          std::ranges::all_of(model.uses[use], is_used_once));
    made.before.push_back(sum);
  }
  made.recompute_seconds = std::max(made.recompute_seconds, 0.0);
  return made;
}

}  // namespace aliquot
