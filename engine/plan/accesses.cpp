#include "engine/plan/accesses.h"

#include <algorithm>

#include "engine/plan/sizes.h"
#include "engine/plan/use_collectives.h"

namespace aliquot {

Accesses::Accesses(const Plan& plan)
    : plan_(plan),
      several_nodes_(!plan.topology.one_node()),
      reduces_in_place_(plan.schedule.reduces_in_place),
      has_exchange_staging_(needed_bytes(plan, Role::kExchangeStaging, -1) > 0),
      has_collective_staging_(needed_bytes(plan, Role::kCollectiveStaging, -1) > 0),
      has_tensor_sum_staging_(needed_bytes(plan, Role::kTensorSumStaging, -1) > 0),
      code_of_collective_(plan.schedule.operations.size(), -1),
      recipes_(reduce_recipes(plan)),
      accumulating_units_(accumulating_units(plan)),
      copies_(copied_slots(plan.schedule)) {
  OperationId code = -1;
  for (OperationId id = 0; id < static_cast<OperationId>(code_of_collective_.size()); ++id) {
    const Verb verb = plan.schedule.operations[id].verb;
    if (is_model_code(verb)) code = id;
    if (verb == Verb::kUseCollective) code_of_collective_[id] = code;
  }
}

std::vector<std::vector<UnitId>> accumulating_units(const Plan& plan) {
  const auto& operations = plan.schedule.operations;
  std::vector<std::vector<UnitId>> units(operations.size());
  // For each unit, the micro-batches whose gradients were written but not reduced yet. If one reduce sums all
  // micro-batches, 0 stands for all of them.
  std::vector<std::vector<int32_t>> begun(plan.model.units.size());
  for (std::size_t id = 0; id < operations.size(); ++id) {
    const Operation& operation = operations[id];
    const int32_t sum_of = plan.schedule.accumulate_into_shard ? operation.micro_batch : 0;
    if (operation.verb == Verb::kReduce) std::erase(begun[operation.operand], sum_of);
    if (!computes_weight_gradients(operation.verb)) continue;
    for (const UnitId unit : plan.model.uses[operation.operand]) {
      const bool adds = std::ranges::find(begun[unit], sum_of) != begun[unit].end();
      if (adds) {
        units[id].push_back(unit);
      } else {
        begun[unit].push_back(sum_of);
      }
    }
  }
  return units;
}

void Accesses::copy(OperationId id) {
  const bool in = plan_.schedule.operations[id].verb == Verb::kCopyIn;
  for (const BufferId b : copies_[id]) {
    const PlannedBuffer& slot = plan_.schedule.buffers[b];
    const Role home = *offloaded_role_of(slot.role);
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
  list(id);
  for (Access& access : accesses_) {
    if (info(access.role).per_micro_batch) access.micro_batch = plan_.schedule.operations[id].micro_batch;
  }
  return accesses_;
}

void Accesses::list(OperationId id) {
  const Operation& operation = plan_.schedule.operations[id];
  if (is_model_code(operation.verb)) {
    use(id);
    return activations(operation);
  }
  if (operation.verb == Verb::kUseCollective) return collective(id);
  if (is_transfer(operation.verb)) return transfer(operation);
  if (operation.verb == Verb::kNorm) return norm();
  if (operation.verb == Verb::kCopyIn || operation.verb == Verb::kCopyOut) return copy(id);
  if (belongs_to_matrix_group(operation.verb)) return group(operation);
  for (const int32_t flat : plan_.flats_of_unit[operation.operand]) {
    const bool trainable = plan_.flats[flat].trainable;
    if (operation.verb == Verb::kGatherQuantizedShards) gather_quantized_shards(flat);
    if (operation.verb == Verb::kGather) gather(flat);
    if (operation.verb == Verb::kRelease) {  // the model may read the parameters until the release
      add({.role = plan_.schedule.view ? Role::kParameters : Role::kGathered,
           .flat = flat,
           .readers = shard_group_if(plan_.schedule.view)});
    }
    if (operation.verb == Verb::kCompareState) compare_state(flat);
    if (!trainable) continue;
    if (operation.verb == Verb::kDigestGradients) digest_gradients(flat);
    if (operation.verb == Verb::kSumOverTensor && plan_.sums_over_tensor(flat)) sum_over_tensor(flat);
    if (operation.verb == Verb::kReduce) append_accesses(recipes_[id], flat, accesses_);
    if (operation.verb == Verb::kReplicaAllReduce) replica_all_reduce(recipes_[id].into, flat);
    if (operation.verb == Verb::kAllGatherGradients) all_gather_gradients(flat);
    if (operation.verb == Verb::kUpdate) update(flat);
    if (operation.verb == Verb::kAllGatherParameters) all_gather_parameters(flat);
  }
}

void Accesses::use(OperationId id) {
  const Operation& operation = plan_.schedule.operations[id];
  for (const UnitId unit : plan_.model.uses[operation.operand]) {
    for (const int32_t flat : plan_.flats_of_unit[unit]) {
      const bool slot = plan_.schedule.zero_stage == 3 && !plan_.schedule.view;
      if (reads_parameters(operation.verb)) {
        add({.role = slot ? Role::kGathered : Role::kParameters,
             .flat = flat,
             .readers = shard_group_if(plan_.schedule.view)});
      }
      if (computes_weight_gradients(operation.verb) && plan_.flats[flat].trainable) {
        // A backward that adds to earlier gradients also reads them.
        if (std::ranges::find(accumulating_units_[id], unit) != accumulating_units_[id].end())
          add({.role = Role::kGradients, .flat = flat});
        add({.role = Role::kGradients, .flat = flat, .writes = true});
      }
    }
  }
}

/// Model code reads only activations that the same micro-batch wrote.
void Accesses::activations(const Operation& operation) {
  const ActivationSpec& spec = plan_.model.activations;
  if (spec.uses.empty()) return;
  const int32_t use = operation.operand;
  const bool backward = is_backward(operation.verb), for_input = computes_input_gradients(operation.verb);
  const auto touch = [&](Role role, int32_t whose, bool writes) {
    if (needed_bytes(plan_, role, whose) == 0) return;
    add({.role = role, .flat = whose, .writes = writes});
  };
  const UseActivations& of = spec.uses[use];
  touch(Role::kScratch, use, true);
  if (use > 0 && (!backward || of.input_in_backward)) touch(Role::kOutputActivations, use - 1, false);
  const bool reads_output = of.output_in_backward && (for_input || operation.verb == Verb::kRecompute);
  if (operation.verb == Verb::kForward || reads_output) touch(Role::kOutputActivations, use, !backward);
  touch(Role::kSavedActivations, use, !backward);
  if (operation.verb == Verb::kBackwardInput) touch(Role::kWeightInputs, use, true);
  if (operation.verb == Verb::kBackwardWeights) touch(Role::kWeightInputs, use, false);
  if (!for_input) return;
  if (use + 1 < static_cast<int32_t>(spec.uses.size())) touch(Role::kActivationGradients, -1, false);
  touch(Role::kActivationGradients, -1, true);
}

/// A collective reads and writes its data on all ranks of the tensor group, between two barriers. No other rank
/// accesses this rank's memory outside of the barriers, so the order of this rank's operations suffices to avoid races.
/// The model code after the collective may access everything that the use may access.
void Accesses::collective(OperationId id) {
  const Operation& operation = plan_.schedule.operations[id];
  const UseCollective& what = collective_of(plan_.model, operation);
  const auto [role, owner] = buffer_of(what, operation.operand);
  add({.role = role, .flat = owner, .writes = true, .readers = GroupId::kTensor, .after_all_arrived = true});
  if (adds(what.kind) && has_collective_staging_) add({.role = Role::kCollectiveStaging, .flat = -1, .writes = true});
  const OperationId code = code_of_collective_[id];
  if (code < 0) return;
  use(code);
  activations(plan_.schedule.operations[code]);
}

/// Like collective(), between two barriers.
void Accesses::sum_over_tensor(int32_t flat) {
  add({.role = Role::kGradients, .flat = flat, .writes = true, .readers = GroupId::kTensor, .after_all_arrived = true});
  if (has_tensor_sum_staging_) add({.role = Role::kTensorSumStaging, .flat = -1, .writes = true});
}

/// The receiving rank writes its own buffer and reads the buffer of the sender. The sender waits until the receiver has
/// finished.
void Accesses::transfer(const Operation& operation) {
  const bool activations = transfers_activations(operation.verb);
  add({.role = activations ? Role::kOutputActivations : Role::kActivationGradients,
       .flat = activations ? operation.operand : -1,
       .writes = is_receive(operation.verb)});
}

void Accesses::gather(int32_t flat) {
  if (plan_.policy.quantize_weights) return gather_quantized(flat);
  if (plan_.schedule.view) {
    add({.role = Role::kParameters, .flat = flat, .readers = GroupId::kShard});
    return;
  }
  const bool offloaded =
      plan_.policy.offload_parameters != Offload::kNone && needed_bytes(plan_, Role::kStagedShard, flat) > 0;
  add({.role = offloaded ? Role::kStagedShard : Role::kParameters,
       .flat = flat,
       .readers = GroupId::kShard,
       .after_all_arrived = true});
  add({.role = Role::kGathered, .flat = flat, .writes = true, .readers = shard_group_if(several_nodes_)});
}

/// Quantizes this rank's shard. If there are several nodes, this rank then exchanges quantized shards with the ranks of
/// other nodes that have the same index within their node. Each of these ranks copies the shards of the others into its
/// own buffer. In gather_quantized(), the ranks of its node read this buffer.
void Accesses::gather_quantized_shards(int32_t flat) {
  add({.role = Role::kParameters, .flat = flat});
  add({.role = Role::kQuantizedShards, .flat = flat, .writes = true});
  if (!several_nodes_) return;
  add({.role = Role::kQuantizedShards, .flat = flat, .readers = GroupId::kShard, .after_all_arrived = true});
  add({.role = Role::kQuantizedShards, .flat = flat, .writes = true, .after_all_arrived = true});
}

void Accesses::gather_quantized(int32_t flat) {
  const bool collective = has_several_ranks_per_node(plan_);
  add({.role = Role::kQuantizedShards,
       .flat = flat,
       .readers = shard_group_if(collective),
       .after_all_arrived = collective});
  if (collective) {
    add({.role = Role::kQuantizedParameters, .flat = flat, .writes = true});
    add({.role = Role::kQuantizedParameters, .flat = flat});
  }
  add({.role = Role::kGathered, .flat = flat, .writes = true});
}

void Accesses::replica_all_reduce(const Accumulation& into, int32_t flat) {
  const auto share = [&](Role role) {  // this rank writes the buffer, then the other replicas read it
    add({.role = role, .flat = flat, .writes = true});
    add({.role = role, .flat = flat, .readers = GroupId::kReplica, .after_all_arrived = true});
  };
  if (encodes_exchanges(plan_)) {
    add({.role = Role::kReplicaPartialSums, .flat = flat});
    add_read_and_write(Role::kErrorFeedbackResidual, flat);
    share(Role::kQuantizedSums);
    share(Role::kQuantizedReceived);
    add({.role = Role::kFp32Sums, .flat = flat, .writes = true});
    add({.role = Role::kFp32Sums, .flat = flat});
    add({.role = Role::kReducedGradients, .flat = flat, .writes = true});
    add({.role = Role::kBlockSquares, .flat = flat, .writes = true});
    return;
  }
  add({.role = Role::kReplicaPartialSums, .flat = flat, .readers = GroupId::kReplica, .after_all_arrived = true});
  if (has_exchange_staging_) add({.role = Role::kExchangeStaging, .flat = -1, .writes = true});
  const RepeatedSums repeated = repeated_sums(plan_, GroupId::kReplica, flat);
  if (repeated.count > 0) append_accesses(repeated, flat, accesses_);
  share(into.result());
  if (into.result_has_squares()) share(Role::kBlockSquares);
  append_accesses(into, flat, accesses_);
}

void Accesses::all_gather_gradients(int32_t flat) {
  const Role sum = reduces_in_place_ ? Role::kGradients : Role::kReducedGradients;
  add({.role = sum, .flat = flat, .readers = GroupId::kShard, .after_all_arrived = true});
  // This operation overwrites a part of this rank's gradients only after the part's owner has sent its sum. By then,
  // the owner has finished reading this rank's gradients.
  add({.role = Role::kGradients,
       .flat = flat,
       .writes = true,
       .readers = shard_group_if(several_nodes_),
       .after_all_arrived = true});
}

void Accesses::norm() {
  for (std::size_t f = 0; f < plan_.flats.size(); ++f) {
    const auto flat = static_cast<int32_t>(f);
    if (!plan_.trains(flat)) continue;
    add({.role = Role::kBlockSquares, .flat = flat});
    if (!plan_.has_exact_norm()) continue;
    gradient_to_update(flat);
    add({.role = Role::kBlockSquares, .flat = flat, .writes = true});
  }
  if (needed_bytes(plan_, Role::kNormRuns, -1) > 0) add({.role = Role::kNormRuns, .flat = -1});
  if (needed_bytes(plan_, Role::kNormPartialSums, -1) > 0)
    add({.role = Role::kNormPartialSums, .flat = -1, .writes = true});
  add({.role = Role::kNormParts, .flat = -1, .writes = true, .readers = GroupId::kShard});
}

void Accesses::gradient_to_update(int32_t flat) { add({.role = plan_.updated_gradients(), .flat = flat}); }

/// Adds the accesses of an operation that changes a buffer in place.
void Accesses::add_read_and_write(Role role, int32_t flat) {
  add({.role = role, .flat = flat});
  add({.role = role, .flat = flat, .writes = true});
}

void Accesses::update(int32_t flat) {
  if (plan_.flats[flat].matrices) {
    add({.role = Role::kMuonDirections, .flat = flat});
  } else {
    gradient_to_update(flat);
    if (plan_.state_bytes_per_block(flat) > 0) add_read_and_write(Role::kOptimizer, flat);
  }
  if (plan_.policy.precision.has_master()) add_read_and_write(Role::kMaster, flat);
  const bool carries = encodes_gradients(plan_) || encodes_exchanges(plan_);
  if (carries && !plan_.policy.update_in_backward)
    add({.role = Role::kErrorFeedbackResidual, .flat = flat, .writes = true});
  if (needed_bytes(plan_, Role::kSegments, flat) > 0) add({.role = Role::kSegments, .flat = flat});
  add_read_and_write(Role::kParameters, flat);
  if (plan_.policy.check_state) add_read_and_write(Role::kStateDigests, flat);
}

/// With digests of the state, each rank also receives the digests that the owners of the parameters computed.
void Accesses::all_gather_parameters(int32_t flat) {
  for (const Role role : {Role::kParameters, Role::kStateDigests}) {
    if (role == Role::kStateDigests && !plan_.policy.check_state) continue;
    add({.role = role, .flat = flat, .readers = GroupId::kShard, .after_all_arrived = true});
    add({.role = role, .flat = flat, .writes = true, .after_all_arrived = true});
  }
}

void Accesses::compare_state(int32_t flat) {
  if (!plan_.compares_outside_updates(flat)) return;
  add({.role = plan_.policy.offload_parameters == Offload::kNone ? Role::kParameters : Role::kStagedShard,
       .flat = flat});
  add({.role = Role::kStateDigests, .flat = flat});
  if (needed_bytes(plan_, Role::kSegments, flat) > 0) add({.role = Role::kSegments, .flat = flat});
}

void Accesses::digest_gradients(int32_t flat) {
  add({.role = Role::kGradients, .flat = flat});
  add({.role = Role::kGradientDigests, .flat = flat, .writes = true});
}

void Accesses::group(const Operation& operation) {
  const MatrixGroup& what = plan_.matrix_groups[operation.operand];
  if (operation.verb != Verb::kMuonMomentum) return move_matrices(operation.operand, what.in_place, operation.verb);
  for (const int32_t flat : what.flats) {
    gradient_to_update(flat);
    add_read_and_write(Role::kOptimizer, flat);
    if (plan_.policy.check_state) add_read_and_write(Role::kStateDigests, flat);
    if (needed_bytes(plan_, Role::kSegments, flat) > 0) add({.role = Role::kSegments, .flat = flat});
    add({.role = Role::kMuonDirections, .flat = flat, .writes = true});
  }
}

/// Adds the accesses of an operation that orthogonalizes matrices, or moves them between their owners and the shards.
/// At ZeRO stage 0, matrices move between their owners and the full buffers of all ranks.
void Accesses::move_matrices(int32_t group, bool in_place, Verb verb) {
  const auto directions = [&](bool writes, bool after_all_arrived, bool peers_read) {
    for (const int32_t flat : plan_.matrix_groups[group].flats)
      add({.role = Role::kMuonDirections,
           .flat = flat,
           .writes = writes,
           .readers = shard_group_if(peers_read),
           .after_all_arrived = after_all_arrived});
  };
  const auto matrices = [&](bool writes, bool after_all_arrived, bool peers_read) {
    add({.role = Role::kOwnedMatrices,
         .flat = group,
         .writes = writes,
         .readers = shard_group_if(peers_read),
         .after_all_arrived = after_all_arrived});
  };
  if (verb == Verb::kGatherMatrices) {
    directions(false, true, true);
    matrices(true, true, false);
  } else if (verb == Verb::kOrthogonalize) {
    for (const bool writes : {false, true})
      in_place ? directions(writes, false, false) : matrices(writes, false, false);
    add({.role = Role::kOrthogonalizeScratch, .flat = group, .writes = true});
  } else {
    in_place ? directions(false, true, true) : matrices(false, true, true);
    directions(true, true, false);
  }
}

}  // namespace aliquot
