#include "apps/plan/mesh_model.h"

#include <algorithm>
#include <optional>

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

struct UnitUses {
  std::vector<std::size_t> last;  // the last use of each unit
  std::vector<int> count;
};

UnitUses unit_uses(const ModelSpec& model) {
  UnitUses units{.last = std::vector<std::size_t>(model.units.size(), 0),
                 .count = std::vector<int>(model.units.size(), 0)};
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    for (const UnitId unit : model.uses[use]) {
      units.last[unit] = use;
      ++units.count[unit];
    }
  }
  return units;
}

/// Whether a backward in two parts splits the backward of the use.
bool splits_backward(const ModelSpec& model, const UnitUses& units, std::size_t use) {
  const auto trains = [&](UnitId unit) { return elements_of(model.units[unit], 1, true) > 0; };
  const auto is_used_once = [&](UnitId unit) { return units.count[unit] == 1; };
  return model.activations.uses[use].splits_backward && std::ranges::any_of(model.uses[use], trains) &&
         std::ranges::all_of(model.uses[use], is_used_once);
}

MeshModel::Sums sums_of_use(const MeshModel& of, const UnitUses& units, std::size_t use, int tensor) {
  const ModelSpec& model = of.model;
  const UseActivations& activations = model.activations.uses[use];
  const auto seconds = [&](Verb verb) {
    return model_seconds(model, of.cost, static_cast<int32_t>(use), verb) +
           collective_seconds(of.cost, activations, verb, tensor);
  };
  MeshModel::Sums sums{.forward_seconds = seconds(Verb::kForward), .backward_seconds = seconds(Verb::kBackward)};
  if (activations.recomputable) {
    sums.recompute_seconds = seconds(Verb::kRecompute);
    sums.recomputable = 1;
  }
  for (const UnitId unit : model.uses[use]) {
    if (units.last[unit] != use) continue;
    sums.elements += elements_of(model.units[unit], tensor);
    sums.trained_elements += elements_of(model.units[unit], tensor, true);
  }
  return sums;
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

MeshModel::Sums MeshModel::Sums::operator+(const Sums& other) const {
  return {.forward_seconds = forward_seconds + other.forward_seconds,
          .backward_seconds = backward_seconds + other.backward_seconds,
          .recompute_seconds = recompute_seconds + other.recompute_seconds,
          .elements = elements + other.elements,
          .trained_elements = trained_elements + other.trained_elements,
          .recomputable = recomputable + other.recomputable};
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
  MeshModel made{.model = model_of(options, machine), .cost = cost_of(options, machine), .before = {}, .splits = {}};
  const UnitUses units = unit_uses(made.model);
  made.before.emplace_back();
  std::optional<double> shortest_recompute;
  for (std::size_t use = 0; use < made.model.uses.size(); ++use) {
    const MeshModel::Sums of = sums_of_use(made, units, use, options.engine.tensor);
    if (of.recomputable > 0)
      shortest_recompute = std::min(shortest_recompute.value_or(of.recompute_seconds), of.recompute_seconds);
    made.before.push_back(made.before.back() + of);
    made.splits.push_back(splits_backward(made.model, units, use));
  }
  made.recompute_seconds = shortest_recompute.value_or(0);
  for (const UnitSpec& unit : made.model.units)
    made.largest_unit = std::max(made.largest_unit, elements_of(unit, options.engine.tensor));
  return made;
}

}  // namespace aliquot
