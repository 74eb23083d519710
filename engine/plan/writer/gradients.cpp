#include <algorithm>

#include "engine/plan/accesses.h"
#include "engine/plan/sizes.h"
#include "engine/plan/writer/step_writer.h"

namespace aliquot {

StepWriter::Lifetime& StepWriter::gradients(UnitId unit, int32_t micro_batch) {
  std::vector<Lifetime>& all = units_[unit].gradients;
  if (all.empty()) all.resize(interleaved_[unit] ? static_cast<std::size_t>(schedule_.micro_batches_in_flight) : 1);
  return all[static_cast<std::size_t>(micro_batch) % all.size()];
}

/// Adds the digests of a unit's gradients after the last backward of micro-batch 0 that writes them. They run on the
/// compute lane, because later micro-batches add to these gradients and reduces overwrite them. A replay needs the
/// gradients only for these digests.
void StepWriter::digest_gradients(int32_t v) {
  const Visit& visit = visits_[v];
  if (!policy_.digests_gradients() || visit.micro_batch != 0) return;
  for (const UnitId unit : model_.uses[visit.use]) {
    if (visit.use != units_[unit].first_use || !trains(unit)) continue;
    Lifetime& written = gradients(unit, 0);
    written.last = add(Verb::kDigestGradients, unit, 0);
    if (!policy_.replay) continue;
    for (const int32_t f : flats_of_[unit]) {
      if (!flats_[f].trainable || has_persistent_gradients(unit)) continue;
      add_buffer(Role::kGradients, f, written, {{written.last}});
      if (interleaved_[unit]) draft_.buffers.back().buffer.micro_batch = 0;
    }
    written = {};
  }
}

void StepWriter::reduce_complete_units(int32_t v) {
  const Visit& visit = visits_[v];
  const bool last_micro_batch = visit.micro_batch == policy_.micro_batch_count - 1;
  if (!last_micro_batch && !schedule_.accumulate_into_shard) return;
  for (const UnitId unit : model_.uses[visit.use]) {
    if (visit.use == units_[unit].first_use && trains(unit)) reduce(unit, visit.micro_batch, last_micro_batch);
  }
}

void StepWriter::reduce(UnitId unit, int32_t micro_batch, bool last_micro_batch) {
  UnitState& state = units_[unit];
  Lifetime& written = gradients(unit, micro_batch);
  if (sums_over_tensor(unit)) add(Verb::kSumOverTensor, unit, micro_batch, {{written.last}});
  const OperationId reduce = add(Verb::kReduce, unit, micro_batch, {{written.last}});
  const ReduceRecipe recipe = recipes_.at(state.first_reduce == kNone, last_micro_batch, micro_batch);
  if (state.first_reduce == kNone) state.first_reduce = reduce;
  if (has_persistent_gradients(unit)) persistent_gradient_writes_.push_back({written.first, unit, state.last_reduce});
  state.last_reduce = reduce;
  add_reduce_buffers(unit, reduce, recipe);
  written = {};
  Accumulation into = recipe.into;
  OperationId sum = reduce;
  if (has_replicas() && (last_micro_batch || exchanges_each_micro_batch(plan_))) {
    into = recipes_.over_replicas(last_micro_batch, micro_batch);
    sum = replica_all_reduce(unit, micro_batch, into);
  }
  if (into.in_levels) merge_levels(unit, sum, into, last_micro_batch);
  if (!last_micro_batch) return;
  if (schedule_.zero_stage == 0) state.spread = add(Verb::kAllGatherGradients, unit, micro_batch, {{sum}});
  if (!policy_.update_in_backward) return;
  if (all_gathers_parameters()) compare_state(unit, micro_batch);
  update(unit, micro_batch, {});
}

bool StepWriter::sums_over_tensor(UnitId unit) const {
  return std::ranges::any_of(flats_of_[unit], [&](int32_t f) { return plan_.sums_over_tensor(f); });
}

/// Adds the buffers that live only during the reduce. Also adds the buffers of full gradients, whose lifetime ends with
/// the reduce.
void StepWriter::add_reduce_buffers(UnitId unit, OperationId reduce, const ReduceRecipe& recipe) {
  std::vector<Access> accesses;
  for (const int32_t f : flats_of_[unit]) {
    if (!flats_[f].trainable) continue;
    accesses.clear();
    append_accesses(recipe, f, accesses);
    for (auto access = accesses.begin(); access != accesses.end(); ++access) {
      const Role role = access->role;
      const auto is_same = [role](const Access& other) { return other.role == role; };
      if (!ends_with_reduce(role) || std::any_of(accesses.begin(), access, is_same)) continue;
      const bool gradients = role == Role::kGradients;
      if (gradients && has_persistent_gradients(unit)) continue;
      const bool peers_read = std::any_of(access, accesses.end(), [&](const Access& other) {
        return is_same(other) && other.readers == GroupId::kShard;
      });
      const int32_t micro_batch = draft_.operations[reduce].micro_batch;
      const OperationId first = gradients ? this->gradients(unit, micro_batch).first : reduce;
      add_buffer(role, f, {first, reduce}, {{reduce, shard_group_if(peers_read)}});
      if (gradients && interleaved_[unit]) draft_.buffers.back().buffer.micro_batch = micro_batch;
    }
  }
}

/// Adds an all-reduce over replicas. It runs on its own lane, in parallel with the next unit's reduce, which uses other
/// links. When it ends, the other replicas have finished reading, so the lifetimes of its buffers end with it.
OperationId StepWriter::replica_all_reduce(UnitId unit, int32_t micro_batch, const Accumulation& into) {
  UnitState& state = units_[unit];
  const OperationId exchange = add(Verb::kReplicaAllReduce, unit, micro_batch, {{state.last_reduce}});
  state.exchange = last_exchange_ = exchange;
  for (const int32_t f : flats_of_[unit]) {
    if (!flats_[f].trainable) continue;
    const OperationId partial = exchanges_each_micro_batch(plan_) ? state.last_reduce : state.first_reduce;
    add_buffer(Role::kReplicaPartialSums, f, {partial, exchange}, {{exchange}});
    if (into.additions > 0) add_buffer(Role::kMicroBatchSum, f, {exchange, exchange}, {{exchange}});
    if (repeated_sums(plan_, GroupId::kReplica, f).count > 0)
      add_buffer(Role::kRepeatedReplicaSums, f, {exchange, exchange}, {{exchange}});
    if (!encodes_exchanges(plan_)) continue;
    for (const Role role : {Role::kFp32Sums, Role::kQuantizedSums, Role::kQuantizedReceived})
      add_buffer(role, f, {exchange, exchange}, {{exchange}});
  }
  return exchange;
}

/// Merges partial sums like a binary counter: after micro-batch m, one stored sum is merged for each trailing 1 of the
/// binary number m. The result is stored at the next level. The last micro-batch writes the total to kReducedGradients.
/// `sum` is the operation that merges.
void StepWriter::merge_levels(UnitId unit, OperationId sum, const Accumulation& into, bool last_micro_batch) {
  UnitState& state = units_[unit];
  const auto closed = static_cast<std::size_t>(into.additions);
  state.levels.resize(std::max(state.levels.size(), closed + 1), kNone);
  for (std::size_t level = 0; level < closed; ++level) {
    for (const int32_t f : flats_of_[unit]) {
      if (flats_[f].trainable)
        add_buffer(tree_level_role(static_cast<int>(level)), f, {state.levels[level], sum}, {{sum}});
    }
    state.levels[level] = kNone;
  }
  if (!last_micro_batch) state.levels[closed] = sum;
}

void StepWriter::finish_step() {
  const int32_t m = policy_.micro_batch_count - 1;
  for (UnitId unit = 0; unit < static_cast<UnitId>(units_.size()); ++unit) compare_state(unit, m);
  const OperationId norm = add(Verb::kNorm, 0, m);
  wait(norm, {last_exchange_});
  if (!policy_.update_in_backward) update_all(norm);
  for (UnitId unit = 0; unit < static_cast<UnitId>(units_.size()); ++unit) {
    if (trains(unit)) add_reduced_buffers(unit, norm);
  }
  add_buffer(Role::kNormParts, -1, {norm, norm}, {{norm, GroupId::kShard}});
  if (needed_bytes(plan_, Role::kNormPartialSums, -1) > 0)
    add_buffer(Role::kNormPartialSums, -1, {norm, norm}, {{norm}});
}

/// Compares parameters as late as possible: after the last model code that reads them, and before an all-gather
/// overwrites them.
void StepWriter::compare_state(UnitId unit, int32_t micro_batch) {
  const auto compares = [&](int32_t f) { return plan_.compares_outside_updates(f); };
  if (units_[unit].compare == kNone && std::ranges::any_of(flats_of_[unit], compares))
    units_[unit].compare = add(Verb::kCompareState, unit, micro_batch);
}

void StepWriter::update(UnitId unit, int32_t micro_batch, std::vector<Wait> after) {
  UnitState& state = units_[unit];
  state.update = add(Verb::kUpdate, unit, micro_batch, std::move(after));
  wait(state.update, {state.spread});
  wait(state.update, {state.compare});
  // Other ranks must have finished reading the parameters that the update writes.
  if (is_zero_stage_3() && policy_.quantize_weights) {
    wait(state.update, {state.refresh});
  } else if (is_zero_stage_3()) {
    wait(state.update,
         schedule_.view ? Wait{state.last_release, GroupId::kShard} : Wait{state.last_gather, GroupId::kShard});
  }
  if (all_gathers_parameters()) state.publish = add(Verb::kAllGatherParameters, unit, micro_batch, {{state.update}});
}

void StepWriter::add_reduced_buffers(UnitId unit, OperationId norm) {
  const UnitState& state = units_[unit];
  const OperationId complete = has_replicas() ? state.exchange : state.last_reduce;
  for (const int32_t f : flats_of_[unit]) {
    if (!flats_[f].trainable) continue;
    add_buffer(Role::kBlockSquares, f, {complete, norm}, {{norm}});
    if (schedule_.reduces_in_place) continue;
    const bool spread = state.spread != kNone, added_up_elsewhere = has_replicas() || schedule_.sums_in_levels;
    const OperationId used = flats_[f].matrices ? group_states_[group_of_unit_[unit]].blend : state.update;
    const OperationId last = spread ? state.spread : used;
    if (spread && !has_persistent_gradients(unit))  // ranks of several nodes read parts from one another's buffers
      add_buffer(Role::kGradients, f, {state.spread, used}, {{used}, {state.spread, shard_group_if(!one_node_)}});
    add_buffer(Role::kReducedGradients, f, {added_up_elsewhere ? complete : state.first_reduce, last},
               {{last, shard_group_if(spread)}});
  }
}

/// Adds one staging buffer for all operations of `verb`, which run one after another on their lane. The buffer is in
/// the arena, which exists longer than messages that are still being transferred after a failure.
void StepWriter::add_staging(Verb verb, Role role) {
  const auto& operations = draft_.operations;
  const auto is_one = [verb](const Operation& operation) { return operation.verb == verb; };
  const auto first = std::ranges::find_if(operations, is_one);
  if (first == operations.end() || needed_bytes(plan_, role, -1) == 0) return;
  const auto last = std::find_if(operations.rbegin(), operations.rend(), is_one).base() - 1;
  const auto id_of = [&](auto at) { return static_cast<OperationId>(at - operations.begin()); };
  add_buffer(role, -1, {id_of(first), id_of(last)}, {{id_of(last)}});
}

void StepWriter::add_waits_on_previous_step() {
  for (const auto& [gather, unit] : first_gathers_) wait(gather, {units_[unit].update, GroupId::kShard, true});
  std::vector<bool> seen(units_.size(), false);
  for (OperationId id = 0; id < static_cast<OperationId>(draft_.operations.size()); ++id) {
    const Operation& operation = draft_.operations[id];
    if (operation.verb != Verb::kForward) continue;
    for (const UnitId unit : model_.uses[operation.operand]) {
      if (!seen[unit] && !is_zero_stage_3())
        wait(id, {all_gathers_parameters() ? units_[unit].publish : units_[unit].update, GroupId::kRank, true});
      seen[unit] = true;
    }
  }
  for (UnitState& state : units_) wait(state.update, {state.publish, GroupId::kShard, true});
  for (const PersistentGradientWrite& write : persistent_gradient_writes_) {
    if (write.reduce_before != kNone) {  // the step has an earlier micro-batch
      wait(write.backward, {write.reduce_before, GroupId::kShard});
      continue;
    }
    wait(write.backward, {units_[write.unit].last_reduce, GroupId::kShard, true});
    wait(write.backward, {units_[write.unit].spread, GroupId::kShard, true});
    wait(write.backward, {units_[write.unit].update, GroupId::kRank, true});
    if (const int32_t group = group_of_unit_[write.unit]; group != kNone)
      wait(write.backward, {group_states_[group].blend, GroupId::kRank, true});
  }
}

/// Extends the buffers of a reduce, or of an all-reduce over replicas, until after the next forward or backward. That
/// operation then uses other memory, so it runs in parallel with the communication.
void StepWriter::add_spare_gradient_slot() {
  const auto count = static_cast<OperationId>(draft_.operations.size());
  for (auto& [buffer, ends] : draft_.buffers) {
    if (!ends_with_reduce(buffer.role) && buffer.role != Role::kReplicaPartialSums) continue;
    // The buffer is for one micro-batch, and the next backward uses another buffer.
    if (buffer.micro_batch >= 0) continue;
    OperationId next = buffer.last;
    const auto overlaps = [](Verb verb) { return verb == Verb::kForward || is_backward(verb); };
    while (next < count && !overlaps(draft_.operations[next].verb)) ++next;
    if (next < count) buffer.last = next;
  }
}

void StepWriter::add_persistent_buffers() {
  if (needed_bytes(plan_, Role::kNormRuns, -1) > 0) add_persistent_buffer(Role::kNormRuns, -1);
  for (int32_t f = 0; f < static_cast<int32_t>(flats_.size()); ++f) {
    if (!plan_.is_here(f)) continue;
    add_persistent_buffer(Role::kParameters, f);
    if (policy_.check_state) add_persistent_buffer(Role::kStateDigests, f);
    if (policy_.quantize_weights) add_persistent_buffer(Role::kQuantizedShards, f);
    if (needed_bytes(plan_, Role::kSegments, f) > 0) add_persistent_buffer(Role::kSegments, f);
    if (!flats_[f].trainable) continue;  // frozen parameters have only a working copy
    if (policy_.replay_every != 0) add_persistent_buffer(Role::kGradientDigests, f);
    for (const GroupId group : {GroupId::kShard, GroupId::kReplica}) {
      const RepeatedSums repeated = repeated_sums(plan_, group, f);
      if (repeated.count > 0) add_persistent_buffer(repeated.digests, f);
    }
    if (policy_.precision.has_master()) add_persistent_buffer(Role::kMaster, f);
    if (plan_.state_bytes_per_block(f) > 0) add_persistent_buffer(Role::kOptimizer, f);
    if (encodes_gradients(plan_) || encodes_exchanges(plan_)) add_persistent_buffer(Role::kErrorFeedbackResidual, f);
    if (has_persistent_gradients(flats_[f].unit)) add_persistent_buffer(Role::kGradients, f);
  }
}

void StepWriter::add_persistent_buffer(Role role, int32_t flat) {
  add_buffer(role, flat, {0, static_cast<OperationId>(draft_.operations.size()) - 1}, {});
  draft_.buffers.back().buffer.always = true;
}

}  // namespace aliquot
