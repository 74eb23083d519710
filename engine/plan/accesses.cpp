#include "engine/plan/accesses.h"

#include <algorithm>

#include "kernels/elementwise/kernels.h"
#include "sharding/comm/reduce_staging.h"

namespace aliquot {

Accesses::Accesses(const Plan& plan)
    : plan_(plan),
      several_nodes_(!plan.topology.one_node()),
      reduces_in_place_(plan.schedule.reduces_in_place),
      stages_reduces_(needed_bytes(plan, Role::kReduceStaging, -1) > 0),
      stages_exchanges_(needed_bytes(plan, Role::kExchangeStaging, -1) > 0),
      first_reduce_(plan.model.units.size(), -1),
      last_reduce_(plan.model.units.size(), -1),
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
    if (operation.verb != Verb::kReduce) continue;
    begun[operation.place] = false;
    last_reduce_[operation.place] = static_cast<OperationId>(id);
    if (first_reduce_[operation.place] < 0) first_reduce_[operation.place] = static_cast<OperationId>(id);
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
    if (operation.verb == Verb::kReduce) reduce(id, flat);
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

void Accesses::reduce(OperationId id, int32_t flat) {
  const Precision& precision = plan_.policy.precision;
  const bool encoded = encodes_gradients(plan_), meets = !encoded || meets_in_node(plan_);
  if (precision.sent() == precision.gradients) {
    add({.role = Role::kGradients, .flat = flat, .by_peers = meets, .after_meeting = meets});
  } else {
    add({.role = Role::kGradients, .flat = flat});
    add({.role = Role::kSent, .flat = flat, .writes = true});
    add({.role = Role::kSent, .flat = flat, .by_peers = meets, .after_meeting = meets});
  }
  if (encoded) add_up_encoded(flat);
  if (stages_reduces_) add({.role = Role::kReduceStaging, .flat = -1, .writes = true});
  add_up(id, flat);
  if (id == last_reduce_[plan_.flats[flat].unit] && plan_.policy.replica_count == 1)
    add({.role = Role::kSquares, .flat = flat, .writes = true});
}

/// What was reduced becomes the sum, or is added to it; in levels, to those that waited for it.
void Accesses::add_up(OperationId id, int32_t flat) {
  const UnitId unit = plan_.flats[flat].unit;
  Role sum = reduces_in_place_ ? Role::kGradients : plan_.policy.replica_count > 1 ? Role::kAcross : Role::kReduced;
  if (plan_.schedule.sums_in_levels) {
    const int closed = closed_levels(plan_.schedule.operations[id].micro_batch);
    if (closed > 0) add({.role = Role::kPartial, .flat = flat, .writes = true});
    for (int level = 0; level < closed; ++level) add({.role = level_role(level), .flat = flat});
    if (id != last_reduce_[unit]) sum = level_role(closed);
  } else if (id != first_reduce_[unit]) {
    add({.role = Role::kPartial, .flat = flat, .writes = true});
    add({.role = sum, .flat = flat});
  }
  add({.role = sum, .flat = flat, .writes = true});
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

/// A part for each node; with replicas, of the own shard one for each, and what is left of their sum as well.
int64_t encoded_sum_bytes(const Plan& plan, Role role, int64_t shard_count) {
  const bool exchanges = encodes_exchanges(plan);
  const int64_t parts = exchanges ? plan.policy.replica_count : plan.topology.node_count();
  const int64_t count = exchanges ? shard_count / parts : shard_count;
  if (role == Role::kNodeSums) return parts * count * static_cast<int64_t>(sizeof(float));
  return encoded_bytes(count) * (parts + (exchanges && role == Role::kCarried ? 1 : 0));
}

int64_t declared_bytes(const ModelSpec& model, Role role, int32_t use) {
  if (role == Role::kBackward) return model.activations.backward_bytes;
  const UseActivations& of = model.activations.uses[use];
  return role == Role::kOutput ? of.output_bytes : role == Role::kKept ? of.kept_bytes : of.scratch_bytes;
}

namespace {

int64_t longest_shard(const Plan& plan) {
  int64_t longest = 0;
  for (const FlatSpec& flat : plan.flats) {
    if (flat.trainable) longest = std::max(longest, flat.layout.shard_count());
  }
  return longest;
}

/// Of one lane's reduces, which take turns in it, so that the longest part decides.
int64_t reduce_staging_bytes(const Plan& plan) {
  return encodes_gradients(plan) ? 0 : reduce_staging(plan.topology, longest_shard(plan)).size_bytes();
}

/// The peers of one shard may lie on fewer nodes than those of another; all plan with the most.
int64_t exchange_staging_bytes(const Plan& plan) {
  const int replicas = plan.policy.replica_count;
  if (replicas == 1 || encodes_exchanges(plan)) return 0;
  const int64_t longest = longest_shard(plan) / replicas;
  int64_t most = 0;
  for (int shard = 0; shard < plan.topology.rank_count(); ++shard)
    most = std::max(most, reduce_staging(topology_of_peers(plan.world, replicas, shard), longest).size_bytes());
  return most;
}

int64_t activation_bytes(const Plan& plan, Role role, int32_t use) {
  const int64_t declared = declared_bytes(plan.model, role, use);
  if (!plan.policy.check || declared == 0) return declared;
  return (declared + kRedZoneBytes + kPlacePageBytes - 1) / kPlacePageBytes * kPlacePageBytes;
}

}  // namespace

int64_t needed_bytes(const Plan& plan, Role role, int32_t flat) {
  const int ranks = plan.topology.rank_count();
  if (role == Role::kNormParts) return norm_part_bytes(plan.flats) * ranks;
  if (role == Role::kReduceStaging) return reduce_staging_bytes(plan);
  if (role == Role::kExchangeStaging) return exchange_staging_bytes(plan);
  if (role == Role::kBackward || is_of_use(role)) return activation_bytes(plan, role, flat);
  if (role == Role::kMatrices) return plan.matrix_groups[flat].held_bytes;
  if (role == Role::kIteration) return plan.matrix_groups[flat].scratch_bytes;
  const Precision& precision = plan.policy.precision;
  const int64_t shard = plan.flats[flat].layout.shard_count(), whole = shard * ranks;
  const int64_t updated = plan.updated_count(flat);
  switch (role) {
    case Role::kParametersHome:
    case Role::kOffered:
    case Role::kParameters: return (plan.schedule.zero_stage == 3 ? shard : whole) * element_bytes(precision.compute);
    case Role::kMasterHome:
    case Role::kMaster: return updated * precision.master_bytes();
    case Role::kOptimizerHome:
    case Role::kOptimizer: return updated / kBlockElements * plan.state_bytes_per_block(flat);
    case Role::kSegments: return segment_bytes(plan.flats[flat], plan.topology, plan.schedule.zero_stage);
    case Role::kGathered: return whole * element_bytes(precision.compute);
    case Role::kGradients: return whole * element_bytes(precision.gradients);
    case Role::kReduced: return shard * element_bytes(precision.gradients);
    case Role::kSent: return whole * element_bytes(precision.sent());
    case Role::kAcross: return shard * 4;
    case Role::kBlended: return updated * 4;
    case Role::kEncodedWhole: return encoded_bytes(shard) * ranks;
    case Role::kMet: return plan.topology.node_count() == ranks ? 0 : whole * element_bytes(precision.sent());
    case Role::kEncodedShards: return encoded_bytes(shard) * plan.topology.node_count();
    case Role::kNodeSums:
    case Role::kEncodedSums:
    case Role::kEncodedReceived:
    case Role::kCarried: return encoded_sum_bytes(plan, role, shard);
    case Role::kPartial:
      return shard *
             (plan.schedule.sums_in_levels || plan.policy.replica_count > 1 ? 4 : element_bytes(precision.gradients));
    case Role::kSquares: return shard / kBlockElements * static_cast<int64_t>(sizeof(double));
    case Role::kReduceStaging:
    case Role::kExchangeStaging:
    case Role::kNormParts: break;
    default: return shard * 4;  // a level
  }
  return 0;
}

}  // namespace aliquot
