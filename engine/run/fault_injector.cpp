#include "engine/run/fault_injector.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

#include "engine/plan/reduce_recipe.h"
#include "engine/plan/slices.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {
namespace {

constexpr std::string_view kParametersName = "parameters", kMasterName = "master";
constexpr std::string_view kGradientsName = "gradients", kActivationsName = "activations", kSumsName = "sums";

/// Whether the operation works on the unit with the name `unit`. An empty name matches all operations.
bool is_of(const Plan& plan, const Operation& operation, std::string_view unit) {
  const auto named = [&](UnitId id) { return plan.model.units[id].name == unit; };
  return unit.empty() || std::ranges::any_of(units_of(plan, operation), named);
}

/// Returns the unit whose data the fault changes. This is the unit with the name `unit` if the operation works on that
/// unit, otherwise the operation's first unit.
UnitId unit_of(const Plan& plan, const Operation& operation, std::string_view unit) {
  const auto units = units_of(plan, operation);
  const auto named = [&](UnitId id) { return plan.model.units[id].name == unit; };
  const auto found = std::ranges::find_if(units, named);
  return found == units.end() ? units.front() : *found;
}

/// Throws UsageError for a bit flip after an update, if the all-gather of parameters would overwrite the flipped bit.
void refuse_flip_before_publish(const InjectedFault& fault, const Plan& plan) {
  const bool publishes = std::ranges::any_of(
      plan.schedule.operations, [](const Operation& each) { return each.verb == Verb::kAllGatherParameters; });
  const bool of_parameters = fault.of.empty() || fault.of == kParametersName;
  if (!publishes || fault.kind != FaultKind::kFlip || fault.operation != name(Verb::kUpdate) || !of_parameters) return;
  throw UsageError(
      "ALIQUOT_FAULT has op=update,kind=flip, but at ZeRO stages 1 and 2 the operation publish overwrites the flipped "
      "bit: use op=publish,kind=flip.");
}

void refuse_unreachable_fault(const InjectedFault& fault, const Plan& plan, const World& world) {
  if (fault.rank >= world.rank_count()) {
    throw UsageError(
        fmt::format("ALIQUOT_FAULT is for rank {}: expected a rank below {}.", fault.rank, world.rank_count()));
  }
  if (fault.kind == FaultKind::kStop && launched_process_count() == 1) {
    throw UsageError(
        "ALIQUOT_FAULT has kind=stop, which would stop the process of all ranks, so no rank could detect it: use "
        "kind=slow:2s, or start ranks with mpirun.");
  }
  refuse_flip_before_publish(fault, plan);
  // Only the plan of the rank in ALIQUOT_FAULT shows whether the operation exists.
  if (plan.stage.count > 1 && world.rank() != fault.rank) return;
  const bool comes = std::ranges::any_of(plan.schedule.operations, [&](const Operation& operation) {
    return name(operation.verb) == fault.operation && is_of(plan, operation, fault.unit);
  });
  if (comes || fault.operation == "save") return;
  throw UsageError(
      fmt::format("ALIQUOT_FAULT is for operation {}{}{}, which this run does not have: aliquot train --dry-run lists "
                  "the operations.",
                  fault.operation, fault.unit.empty() ? "" : " ", fault.unit));
}

bool is_after_sum(const InjectedFault& fault) {
  return fault.operation == name(Verb::kReduce) || fault.operation == name(Verb::kReplicaAllReduce);
}

bool is_after_backward(const InjectedFault& fault) {
  return fault.operation == name(Verb::kBackward) || fault.operation == name(Verb::kBackwardWeights);
}

/// Throws UsageError if the operation of a bit flip does not produce the data.
void refuse_other_results(const InjectedFault& fault, const Plan& plan) {
  if (fault.kind != FaultKind::kFlip) return;
  if (is_after_backward(fault) && !fault.of.empty() && fault.of != kGradientsName)
    throw UsageError(fmt::format("ALIQUOT_FAULT has op={},of={}: expected of=gradients after a backward.",
                                 fault.operation, fault.of));
  if (fault.of == kGradientsName && !is_after_backward(fault))
    throw UsageError("ALIQUOT_FAULT is of=gradients: expected op=backward or op=backward-weights.");
  const bool has_value = !fault.of.empty(), of_sums = fault.of == kSumsName;
  if (has_value && of_sums != is_after_sum(fault))
    throw UsageError(
        fmt::format("ALIQUOT_FAULT has op={},of={}: of=sums is for op={} and op={}, which accept no other "
                    "value of this field.",
                    fault.operation, fault.of, name(Verb::kReduce), name(Verb::kReplicaAllReduce)));
  const GroupId group = fault.operation == name(Verb::kReduce) ? GroupId::kShard : GroupId::kReplica;
  if (is_after_sum(fault) && repetition_count(plan, group) == 0)
    throw UsageError(
        "ALIQUOT_FAULT flips a bit in a sum over ranks, but this run does not compare such sums: set "
        "EngineOptions::replay_every, do not quantize gradients, and use at least two ranks in the group.");
  if (fault.of != kActivationsName) return;
  if (fault.operation != name(Verb::kForward) || plan.model.activations.uses.empty())
    throw UsageError(
        "ALIQUOT_FAULT is of=activations: expected op=forward, and a model that declares its activations.");
}

void refuse_unknown_state(const InjectedFault& fault, const FaultInjector::Parts& parts) {
  refuse_other_results(fault, parts.plan);
  if (is_after_backward(fault) || is_after_sum(fault) || fault.of == kActivationsName) return;
  if (fault.of.empty() || fault.of == kParametersName) return;
  std::string names;
  for (int32_t f = 0; f < static_cast<int32_t>(parts.plan.flats.size()); ++f) {
    if (!parts.plan.trains(f)) continue;
    if (fault.of == kMasterName && parts.plan.policy.precision.has_master()) return;
    for (const StateSpec& state : parts.updater.states(f)) {
      if (state.name == fault.of) return;
      if (names.find(state.name) == std::string::npos) names += fmt::format(", {}", state.name);
    }
  }
  throw UsageError(
      fmt::format("ALIQUOT_FAULT is of={}, but this run has no such state: expected one of parameters{}{}.", fault.of,
                  parts.plan.policy.precision.has_master() ? ", master" : "", names));
}

void refuse_fault_in_replay(const InjectedFault& fault, const Plan& plan) {
  if (fault.in_replay && plan.policy.replay_every == 0)
    throw UsageError("ALIQUOT_FAULT has in=replay, but this run has no replays: set EngineOptions::replay_every.");
}

}  // namespace

const std::vector<FaultPoint>& fault_points() {
  static const std::vector<FaultPoint> points = [] {
    std::vector<FaultPoint> all;
    for (const VerbInfo& verb : kVerbTable) {
      const bool has_gradient = computes_weight_gradients(verb.verb) || verb.verb == Verb::kReduce;
      const bool has_parameters = verb.verb == Verb::kUpdate || verb.verb == Verb::kAllGatherParameters ||
                                  verb.verb == Verb::kForward || verb.verb == Verb::kMuonMomentum;
      std::vector<FaultKind> kinds;
      if (has_gradient) kinds.push_back(FaultKind::kNan);
      const bool has_sums = verb.verb == Verb::kReduce || verb.verb == Verb::kReplicaAllReduce;
      if (has_parameters || has_sums || computes_weight_gradients(verb.verb)) kinds.push_back(FaultKind::kFlip);
      all.push_back({verb.name, std::move(kinds)});
    }
    return all;
  }();
  return points;
}

std::unique_ptr<FaultInjector> make_fault_injector(World& world, const FaultInjector::Parts& parts) {
  const InjectedFault* fault = injected_fault(fault_points());
  if (fault == nullptr) return nullptr;
  const bool is_here = fault->in_replay == parts.plan.policy.replay;
  if (!parts.plan.policy.replay) refuse_fault_in_replay(*fault, parts.plan);
  if (is_here) refuse_unreachable_fault(*fault, parts.plan, world);
  if (is_here && fault->rank == world.rank()) refuse_unknown_state(*fault, parts);
  if (fault->rank != world.rank() || fault->operation == "save") return nullptr;
  if (!is_here && !fault->is_permanent) return nullptr;
  return std::make_unique<FaultInjector>(*fault, parts);
}

bool FaultInjector::matches(OperationId operation, int64_t step) const {
  const Operation& what = parts_.plan.schedule.operations[operation];
  const bool is_time = fault_.is_permanent ? step >= fault_.step : !done_ && step == fault_.step;
  return is_time && name(what.verb) == fault_.operation && is_of(parts_.plan, what, fault_.unit);
}

void FaultInjector::before(Stream& lane, OperationId operation, int64_t step) {
  if (!matches(operation, step)) return;
  const Operation& what = parts_.plan.schedule.operations[operation];
  const bool follows = fault_.kind == FaultKind::kNan && computes_weight_gradients(what.verb);
  if (fault_.kind == FaultKind::kFlip || follows) return;
  done_ = true;
  if (fault_.kind == FaultKind::kNan) return write_nan_gradient(lane, unit_of(parts_.plan, what, fault_.unit));
  where_ = fmt::format("{} (step {})", title(parts_.plan, operation), step);
  lane.run([this] { inject_fault(fault_, where_); });
}

void FaultInjector::after(Stream& lane, OperationId operation, int64_t step) {
  if (!matches(operation, step)) return;
  done_ = true;
  const Operation& what = parts_.plan.schedule.operations[operation];
  const UnitId unit = unit_of(parts_.plan, what, fault_.unit);
  if (fault_.kind == FaultKind::kNan) write_nan_gradient(lane, unit);
  if (fault_.kind != FaultKind::kFlip || is_after_sum(fault_)) return;
  const bool of_gradients = computes_weight_gradients(what.verb), of_activations = fault_.of == kActivationsName;
  if (!of_gradients && !of_activations) return flip_bit(lane, unit);
  flip_result(lane, of_gradients ? gradient_of(unit) : parts_.memory.peek(Role::kOutputActivations, what.operand));
}

/// Flips a bit of what the work of the lane has computed at `result`, which may be null.
void FaultInjector::flip_result(Stream& lane, std::byte* result) const {
  if (result == nullptr) return;
  if (parts_.device.kind() == DeviceKind::kHost) return lane.run([result] { result[1] ^= std::byte{4}; });
  lane.synchronize();
  std::byte byte{};
  parts_.view.fetch(&byte, result + 1, 1);
  byte ^= std::byte{4};
  parts_.view.store(result + 1, &byte, 1);
}

void FaultInjector::after_sum(Stream& lane, OperationId operation, int64_t step, std::byte* sum, bool repeats) const {
  if (fault_.kind != FaultKind::kFlip || !matches(operation, step) || (repeats && !fault_.is_permanent)) return;
  flip_result(lane, sum);
}

/// Returns the address of the first gradient of the unit, or null if it has none.
std::byte* FaultInjector::gradient_of(UnitId unit) const {
  for (const int32_t f : parts_.plan.flats_of_unit[unit]) {
    std::byte* gradients = parts_.memory.peek(Role::kGradients, f);
    if (gradients == nullptr) continue;
    return gradients +
           parts_.plan.flats[f].layout.tensor_offset(0) * element_bytes(parts_.plan.policy.precision.gradients);
  }
  return nullptr;
}

void FaultInjector::write_nan_gradient(Stream& lane, UnitId unit) const {
  if (std::byte* gradient = gradient_of(unit))
    parts_.device.kernels().fill(lane, gradient, parts_.plan.policy.precision.gradients,
                                 std::numeric_limits<float>::quiet_NaN(), 1);
}

/// Returns the address of the value of an element of the shard of `rank` in the data that the fault flips, or null if
/// this rank has none. During an operation, offloaded data is in a slot.
std::byte* FaultInjector::flipped_byte(int32_t flat, int rank, int64_t shard_offset) const {
  const auto base = [&](Role role) {
    std::byte* slot = parts_.memory.peek(role, flat);
    return slot != nullptr ? slot : parts_.memory.address_between_steps(role, flat);
  };
  const Precision& precision = parts_.plan.policy.precision;
  const int64_t element =
      (rank - parts_.weights.first_rank()) * parts_.plan.flats[flat].layout.shard_count() + shard_offset;
  if (fault_.of.empty() || fault_.of == kParametersName)
    return base(Role::kParameters) + element * element_bytes(precision.compute);
  const bool updates_all = parts_.plan.schedule.zero_stage == 0;
  if (!parts_.plan.trains(flat) || !(updates_all || rank == parts_.updater.rank())) return nullptr;
  const int64_t updated = updates_all ? element : shard_offset;
  if (fault_.of == kMasterName) return base(Role::kMaster) + updated * precision.master_bytes();
  const auto& states = parts_.updater.states(flat);
  const auto state = std::ranges::find(states, std::string_view(fault_.of), &StateSpec::name);
  if (state == states.end()) return nullptr;
  const auto index = static_cast<std::size_t>(state - states.begin());
  const int64_t offset =
      parts_.updater.state(flat, index) - parts_.memory.address_between_steps(Role::kOptimizer, flat);
  return base(Role::kOptimizer) + offset + updated / state->elements_per_value * element_bytes(state->dtype);
}

/// Flips a low bit in the value of the unit's first element on this rank.
void FaultInjector::flip_bit(Stream& lane, UnitId unit) const {
  lane.synchronize();
  for (const int32_t f : parts_.plan.flats_of_unit[unit]) {
    for (int r = parts_.weights.first_rank(); r <= parts_.weights.last_rank(); ++r) {
      const std::vector<Piece> pieces = slice_pieces(parts_.plan, f, r, parts_.tensor);
      std::byte* at = pieces.empty() ? nullptr : flipped_byte(f, r, pieces.front().shard_offset);
      if (at == nullptr) continue;
      std::byte byte{};
      parts_.view.fetch(&byte, at, 1);
      byte ^= std::byte{4};
      parts_.view.store(at, &byte, 1);
      return;
    }
  }
}

}  // namespace aliquot
