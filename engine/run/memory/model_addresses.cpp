#include "engine/run/memory/model_addresses.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <tuple>

#include "engine/plan/sizes.h"
#include "engine/plan/slices.h"

namespace aliquot {

ModelAddresses::ModelAddresses(const Plan& plan, const StepMemory& memory, const Arena& arena, int coordinate,
                               const std::vector<std::vector<PointerSlots>>& slots)
    : plan_(plan),
      memory_(memory),
      protects_(plan.policy.check && !plan.topology.has_gpus()),
      aliases_(plan.schedule.buffers.size()) {
  if (!protects_) return;
  std::map<std::tuple<Role, int32_t, int64_t>, std::shared_ptr<AliasedPages>> made;
  for (BufferId b = 0; b < static_cast<BufferId>(aliases_.size()); ++b) {
    const PlannedBuffer& buffer = plan.schedule.buffers[b];
    const bool seen = buffer.role == values_role() || buffer.role == Role::kGradients ||
                      buffer.role == Role::kActivationGradients || belongs_to_use(buffer.role);
    if (!seen || buffer.size_bytes == 0) continue;
    auto& alias = made[{buffer.role, buffer.flat, buffer.offset_bytes}];
    if (alias == nullptr) {
      const bool view = buffer.space == Space::kSharedRange;
      const std::byte* at = view ? arena.shared().readable() + buffer.offset_bytes : memory.peek(b);
      const int64_t size_bytes = buffer.size_bytes * (view ? plan.topology.rank_count() : 1);
      const int64_t pages = (size_bytes + kPlacePageBytes - 1) / kPlacePageBytes;
      alias = std::make_shared<AliasedPages>(at, pages * kPlacePageBytes, names(buffer, coordinate),
                                             slices(buffer, coordinate, slots));
    }
    aliases_[b] = alias;
  }
  source_.emplace(this, explain);
}

bool ModelAddresses::explain(const void* owner, const void* address, FaultLine& line) noexcept {
  for (const auto& alias : static_cast<const ModelAddresses*>(owner)->aliases_) {
    if (alias != nullptr && alias->explain(address, line)) return true;
  }
  return false;
}

Role ModelAddresses::values_role() const {
  return plan_.schedule.zero_stage < 3 || plan_.schedule.view ? Role::kParameters : Role::kGathered;
}

TensorRanges ModelAddresses::names(const PlannedBuffer& buffer, int coordinate) const {
  TensorRanges names;
  if (buffer.role == Role::kActivationGradients || belongs_to_use(buffer.role)) {
    names.add(fmt::format("{} memory of {}", name(buffer.role), owner(plan_, buffer)), 0,
              declared_bytes(plan_.model, buffer.role, buffer.flat));
    return names;
  }
  const FlatLayout& layout = plan_.flats[buffer.flat].layout;
  const bool gradients = buffer.role == Role::kGradients;
  const Precision& precision = plan_.policy.precision;
  const int64_t bytes = element_bytes(gradients ? precision.gradients : precision.compute);
  for (int32_t t = 0; t < static_cast<int32_t>(layout.tensors().size()); ++t) {
    const int64_t count = slice_of(plan_, buffer.flat, t, coordinate).element_count();
    names.add(fmt::format("{} {}", gradients ? "the gradient of" : "parameter", layout.tensors()[t].name),
              layout.tensor_offset(t) * bytes, count * bytes);
  }
  return names;
}

/// An access through a base pointer to the slice of a closed unit must fault, so the guard ranges include all slices.
SliceReach ModelAddresses::slices(const PlannedBuffer& buffer, int coordinate,
                                  const std::vector<std::vector<PointerSlots>>& slots) const {
  SliceReach reach;
  if (buffer.role == Role::kActivationGradients || belongs_to_use(buffer.role)) return reach;
  const bool gradients = buffer.role == Role::kGradients;
  const Precision& precision = plan_.policy.precision;
  const int64_t bytes = element_bytes(gradients ? precision.gradients : precision.compute);
  const FlatSpec& flat = plan_.flats[buffer.flat];
  for (std::size_t t = 0; t < flat.parameters.size(); ++t) {
    const PointerSlots& both = slots[flat.unit][flat.parameters[t]];
    const PointerSlot& slot = gradients ? both.gradient : both.value;
    if (slot.slice_count() == 0) continue;
    const int64_t slice_bytes =
        slice_of(plan_, buffer.flat, static_cast<int32_t>(t), coordinate).element_count() * bytes;
    reach.before_bytes = std::max(reach.before_bytes, slot.slice_index() * slice_bytes);
    reach.after_bytes = std::max(reach.after_bytes, (slot.slice_count() - 1 - slot.slice_index()) * slice_bytes);
  }
  return reach;
}

std::byte* ModelAddresses::at(Role role, int32_t whose, AccessMode how) const {
  memory_.declare_access(role, whose, how);
  return peek(role, whose);
}

std::byte* ModelAddresses::peek(Role role, int32_t whose) const {
  const BufferId buffer = memory_.current(role, whose);
  if (buffer != kNoBuffer && aliases_[buffer] != nullptr) return aliases_[buffer]->data();
  return role == values_role() ? memory_.full_parameters(whose) : memory_.peek(buffer);
}

std::byte* ModelAddresses::values(int32_t flat) const { return at(values_role(), flat, AccessMode::kReads); }
std::byte* ModelAddresses::gradients(int32_t flat) const { return at(Role::kGradients, flat, AccessMode::kWrites); }

UseMemory ModelAddresses::memory_of_use(int32_t use, Verb verb) const {
  if (plan_.model.activations.uses.empty()) return {.use = use};  // the model allocates its activations
  const UseActivations& declared = plan_.model.activations.uses[use];
  const bool backward = is_backward(verb), for_input = computes_input_gradients(verb);
  const AccessMode made = backward ? AccessMode::kReads : AccessMode::kWrites;  // for buffers that forward writes
  const AccessMode between_parts = for_input ? AccessMode::kWrites : AccessMode::kReads;
  // A buffer that this backward does not declare may still exist, so peek() returns its address without AccessCheck.
  const bool reads_input = use > 0 && (!backward || declared.input_in_backward);
  const bool recomputes = verb == Verb::kRecompute;
  const bool has_output = (!backward && !recomputes) || declared.output_in_backward;
  // Another use may still need an output that this recompute does not declare, so the model code must not write it.
  const bool hides_output = verb == Verb::kBackwardWeights || (recomputes && !has_output);
  const bool first_of_backward = use + 1 == static_cast<int32_t>(plan_.model.uses.size());
  const AccessMode handed_on = first_of_backward ? AccessMode::kWrites : AccessMode::kReadsAndWrites;
  return {.use = use,
          .input = reads_input ? at(Role::kOutputActivations, use - 1, AccessMode::kReads)
                   : use > 0   ? peek(Role::kOutputActivations, use - 1)
                               : nullptr,
          .output = hides_output ? nullptr
                    : has_output ? at(Role::kOutputActivations, use, made)
                                 : peek(Role::kOutputActivations, use),
          .kept = at(Role::kSavedActivations, use, made),
          .scratch = at(Role::kScratch, use, AccessMode::kWrites),
          .backward = for_input ? at(Role::kActivationGradients, -1, handed_on) : nullptr,
          .weight_inputs = is_part_of_backward(verb) ? at(Role::kWeightInputs, use, between_parts) : nullptr};
}

void ModelAddresses::change(std::vector<Change>& changes, Role role, int32_t whose, Protection to) const {
  const BufferId buffer = memory_.current(role, whose);
  if (buffer != kNoBuffer && aliases_[buffer] != nullptr) changes.push_back({aliases_[buffer].get(), to});
}

void ModelAddresses::open(Stream& compute, OperationId operation) {
  if (!protects_) return;
  const Operation& what = plan_.schedule.operations[operation];
  std::vector<Change> changes;
  for (const UnitId unit : plan_.model.uses[what.operand]) {
    for (const int32_t flat : plan_.flats_of_unit[unit]) {
      if (reads_parameters(what.verb)) change(changes, values_role(), flat, Protection::kReadOnly);
      if (computes_weight_gradients(what.verb)) change(changes, Role::kGradients, flat, Protection::kReadWrite);
    }
  }
  if (what.operand > 0) change(changes, Role::kOutputActivations, what.operand - 1, Protection::kReadWrite);
  for (const Role role : {Role::kSavedActivations, Role::kScratch, Role::kWeightInputs})
    change(changes, role, what.operand, Protection::kReadWrite);
  if (what.verb != Verb::kBackwardWeights) {
    change(changes, Role::kOutputActivations, what.operand, Protection::kReadWrite);
    change(changes, Role::kActivationGradients, -1, Protection::kReadWrite);
  }
  apply_changes(compute, std::move(changes));
}

/// Leaves activations accessible until the end of their lifetime, because programs read them between scopes.
void ModelAddresses::close(Stream& compute, OperationId operation) {
  if (!protects_) return;
  const Operation& what = plan_.schedule.operations[operation];
  std::vector<Change> changes;
  for (const UnitId unit : plan_.model.uses[what.operand]) {
    for (const int32_t flat : plan_.flats_of_unit[unit]) {
      for (const Role role : {values_role(), Role::kGradients}) change(changes, role, flat, Protection::kNoAccess);
    }
  }
  const auto count = static_cast<OperationId>(plan_.schedule.operations.size());
  OperationId last = operation;  // the last collective of the use, with which its buffers end
  while (last + 1 < count && plan_.schedule.operations[last + 1].verb == Verb::kUseCollective) ++last;
  for (BufferId b = 0; b < static_cast<BufferId>(aliases_.size()); ++b) {
    const PlannedBuffer& buffer = plan_.schedule.buffers[b];
    const bool ends = buffer.last == last && (buffer.role == Role::kActivationGradients || belongs_to_use(buffer.role));
    if (ends && aliases_[b] != nullptr) changes.push_back({aliases_[b].get(), Protection::kNoAccess});
  }
  apply_changes(compute, std::move(changes));
}

/// Enqueues the changes on the compute lane, which runs the model code asynchronously.
void ModelAddresses::apply_changes(Stream& compute, std::vector<Change> changes) {
  compute.run([all = std::make_shared<const std::vector<Change>>(std::move(changes))] {
    for (const Change& each : *all) each.pages->protect(each.to);
  });
}

}  // namespace aliquot
