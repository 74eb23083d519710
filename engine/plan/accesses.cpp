#include "engine/plan/accesses.h"

#include <algorithm>

#include "engine/plan/sizes.h"

namespace aliquot {

Accesses::Accesses(const Plan& plan)
    : plan_(plan),
      several_nodes_(!plan.topology.one_node()),
      reduces_in_place_(plan.schedule.reduces_in_place),
      stages_exchanges_(needed_bytes(plan, Role::kExchangeStaging, -1) > 0),
      recipes_(reduce_recipes(plan)),
      copies_(copied_slots(plan.schedule)) {
  goes_on_.resize(plan.schedule.operations.size());
  std::vector<bool> begun(plan.model.units.size(), false);
  for (std::size_t id = 0; id < plan.schedule.operations.size(); ++id) {
    const Operation& operation = plan.schedule.operations[id];
    if (operation.verb == Verb::kBackward) {
      for (const UnitId unit : plan.model.uses[operation.place]) {
        if (begun[unit]) goes_on_[id].push_back(unit);
        begun[unit] = true;
      }
    }
    if (operation.verb == Verb::kReduce) begun[operation.place] = false;
  }
}

void Accesses::copy(OperationId id) {
  const bool in = plan_.schedule.operations[id].verb == Verb::kCopyIn;
  for (const BufferId b : copies_[id]) {
    const PlannedBuffer& slot = plan_.schedule.buffers[b];
    const Role home = *home_of(slot.role);
    add({.role = in ? home : slot.role, .flat = slot.flat});
    add({.role = in ? slot.role : home, .flat = slot.flat, .writes = true});
  }
}

bool Accesses::trains(UnitId unit) const {
  const auto& flats = plan_.flats_of_unit[unit];
  return std::any_of(flats.begin(), flats.end(), [&](int32_t f) { return plan_.flats[f].trainable; });
}

const std::vector<Access>& Accesses::of(OperationId id) {
  accesses_.clear();
  const Operation& operation = plan_.schedule.operations[id];
  if (is_model_code(operation.verb)) {
    use(id);
    activations(operation);
    return accesses_;
  }
  if (operation.verb == Verb::kNorm) {
    norm();
    return accesses_;
  }
  if (operation.verb == Verb::kCopyIn || operation.verb == Verb::kCopyOut) {
    copy(id);
    return accesses_;
  }
  if (is_of_group(operation.verb)) {
    group(operation);
    return accesses_;
  }
  for (const int32_t flat : plan_.flats_of_unit[operation.place]) {
    const bool trainable = plan_.flats[flat].trainable;
    if (operation.verb == Verb::kRefresh) refresh(flat);
    if (operation.verb == Verb::kGather) gather(flat);
    if (operation.verb == Verb::kRelease) {  // the model's pointers are good until here
      add({.role = plan_.schedule.view ? Role::kParameters : Role::kGathered,
           .flat = flat,
           .by_peers = plan_.schedule.view});
    }
    if (!trainable) continue;
    if (operation.verb == Verb::kReduce) append_touches(recipes_[id], flat, accesses_);
    if (operation.verb == Verb::kExchange) exchange(flat);
    if (operation.verb == Verb::kSpread) spread(flat);
    if (operation.verb == Verb::kUpdate) update(flat);
    if (operation.verb == Verb::kPublish) {
      add({.role = Role::kParameters, .flat = flat, .by_peers = true, .after_meeting = true});
      add({.role = Role::kParameters, .flat = flat, .writes = true, .after_meeting = true});
    }
  }
  return accesses_;
}

void Accesses::use(OperationId id) {
  const Operation& operation = plan_.schedule.operations[id];
  for (const UnitId unit : plan_.model.uses[operation.place]) {
    for (const int32_t flat : plan_.flats_of_unit[unit]) {
      const bool slot = plan_.schedule.zero_stage == 3 && !plan_.schedule.view;
      add({.role = slot ? Role::kGathered : Role::kParameters, .flat = flat, .by_peers = plan_.schedule.view});
      if (operation.verb == Verb::kBackward && plan_.flats[flat].trainable) {
        // What an earlier backward left there must still be there.
        if (std::ranges::find(goes_on_[id], unit) != goes_on_[id].end()) add({.role = Role::kGradients, .flat = flat});
        add({.role = Role::kGradients, .flat = flat, .writes = true});
      }
    }
  }
}

/// Nothing is read that this micro-batch did not write.
void Accesses::activations(const Operation& operation) {
  const ActivationSpec& spec = plan_.model.activations;
  if (spec.uses.empty()) return;
  const int32_t use = operation.place;
  const bool backward = operation.verb == Verb::kBackward;
  const auto touch = [&](Role role, int32_t whose, bool writes) {
    if (needed_bytes(plan_, role, whose) > 0) add({.role = role, .flat = whose, .writes = writes});
  };
  const UseActivations& of = spec.uses[use];
  touch(Role::kScratch, use, true);
  if (use > 0 && (!backward || of.input_in_backward)) touch(Role::kOutput, use - 1, false);
  if (operation.verb == Verb::kForward || of.output_in_backward) touch(Role::kOutput, use, !backward);
  touch(Role::kKept, use, !backward);
  if (!backward) return;
  if (use + 1 < static_cast<int32_t>(spec.uses.size())) touch(Role::kBackward, -1, false);
  touch(Role::kBackward, -1, true);
}

void Accesses::gather(int32_t flat) {
  if (plan_.policy.quantize_weights) return gather_encoded(flat);
  if (plan_.schedule.view) {
    add({.role = Role::kParameters, .flat = flat, .by_peers = true});
    return;
  }
  const bool offloaded =
      plan_.policy.offload_parameters != Offload::kNone && needed_bytes(plan_, Role::kOffered, flat) > 0;
  add({.role = offloaded ? Role::kOffered : Role::kParameters, .flat = flat, .by_peers = true, .after_meeting = true});
  add({.role = Role::kGathered, .flat = flat, .writes = true, .by_peers = several_nodes_});
}

/// A rank's own part is read by those at its place on other nodes; theirs are written here, and read by this node's.
void Accesses::refresh(int32_t flat) {
  add({.role = Role::kParameters, .flat = flat});
  add({.role = Role::kEncodedShards, .flat = flat, .writes = true});
  if (!several_nodes_) return;
  add({.role = Role::kEncodedShards, .flat = flat, .by_peers = true, .after_meeting = true});
  add({.role = Role::kEncodedShards, .flat = flat, .writes = true, .after_meeting = true});
}

void Accesses::gather_encoded(int32_t flat) {
  const bool meets = meets_in_node(plan_);
  add({.role = Role::kEncodedShards, .flat = flat, .by_peers = meets, .after_meeting = meets});
  if (meets) {
    add({.role = Role::kEncodedWhole, .flat = flat, .writes = true});
    add({.role = Role::kEncodedWhole, .flat = flat});
  }
  add({.role = Role::kGathered, .flat = flat, .writes = true});
}

/// Peers are of other replicas: what they read, they are through with when the exchange is.
void Accesses::exchange(int32_t flat) {
  add({.role = Role::kAcross, .flat = flat});
  if (stages_exchanges_) add({.role = Role::kExchangeStaging, .flat = -1, .writes = true});
  if (encodes_exchanges(plan_)) {
    change(Role::kCarried, flat);
    for (const Role role : {Role::kEncodedSums, Role::kEncodedReceived, Role::kNodeSums}) {
      add({.role = role, .flat = flat, .writes = true});
      add({.role = role, .flat = flat});
    }
  }
  add({.role = Role::kReduced, .flat = flat, .writes = true});
  add({.role = Role::kSquares, .flat = flat, .writes = true});
}

void Accesses::spread(int32_t flat) {
  const Role sum = reduces_in_place_ ? Role::kGradients : Role::kReduced;
  add({.role = sum, .flat = flat, .by_peers = true, .after_meeting = true});
  // A part is written when its owner has sent it, and so has read what it needed here.
  add({.role = Role::kGradients, .flat = flat, .writes = true, .by_peers = several_nodes_, .after_meeting = true});
}

void Accesses::norm() {
  for (std::size_t f = 0; f < plan_.flats.size(); ++f) {
    if (plan_.flats[f].trainable) add({.role = Role::kSquares, .flat = static_cast<int32_t>(f)});
  }
  add({.role = Role::kNormParts, .flat = -1, .writes = true, .by_peers = true});
}

void Accesses::gradient_to_update(int32_t flat) {
  const bool whole = plan_.schedule.zero_stage == 0 || reduces_in_place_;
  add({.role = whole ? Role::kGradients : Role::kReduced, .flat = flat});
}

/// From what it was.
void Accesses::change(Role role, int32_t flat) {
  add({.role = role, .flat = flat});
  add({.role = role, .flat = flat, .writes = true});
}

void Accesses::update(int32_t flat) {
  if (plan_.flats[flat].matrices) {
    add({.role = Role::kBlended, .flat = flat});
  } else {
    gradient_to_update(flat);
    if (plan_.state_bytes_per_block(flat) > 0) change(Role::kOptimizer, flat);
  }
  if (plan_.policy.precision.has_master()) change(Role::kMaster, flat);
  const bool carries = encodes_gradients(plan_) || encodes_exchanges(plan_);
  if (carries && !plan_.policy.update_in_backward) add({.role = Role::kCarried, .flat = flat, .writes = true});
  if (needed_bytes(plan_, Role::kSegments, flat) > 0) add({.role = Role::kSegments, .flat = flat});
  change(Role::kParameters, flat);
}

void Accesses::group(const Operation& operation) {
  const MatrixGroup& what = plan_.matrix_groups[operation.place];
  if (operation.verb != Verb::kBlend) return pass_matrices(operation.place, what.in_place, operation.verb);
  for (const int32_t flat : what.flats) {
    gradient_to_update(flat);
    change(Role::kOptimizer, flat);
    if (needed_bytes(plan_, Role::kSegments, flat) > 0) add({.role = Role::kSegments, .flat = flat});
    add({.role = Role::kBlended, .flat = flat, .writes = true});
  }
}

/// Between the shards, or the wholes that every rank has, and the owners.
void Accesses::pass_matrices(int32_t group, bool in_place, Verb verb) {
  const auto blended = [&](bool writes, bool meets, bool by_peers) {
    for (const int32_t flat : plan_.matrix_groups[group].flats)
      add({.role = Role::kBlended, .flat = flat, .writes = writes, .by_peers = by_peers, .after_meeting = meets});
  };
  const auto matrices = [&](bool writes, bool meets, bool by_peers) {
    add({.role = Role::kMatrices, .flat = group, .writes = writes, .by_peers = by_peers, .after_meeting = meets});
  };
  if (verb == Verb::kCollect) {
    blended(false, true, true);
    matrices(true, true, false);
  } else if (verb == Verb::kOrthogonalize) {
    for (const bool writes : {false, true}) in_place ? blended(writes, false, false) : matrices(writes, false, false);
    add({.role = Role::kIteration, .flat = group, .writes = true});
  } else {
    in_place ? blended(false, true, true) : matrices(false, true, true);
    blended(true, true, false);
  }
}

}  // namespace aliquot
