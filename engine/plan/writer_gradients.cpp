#include <algorithm>

#include "engine/plan/accesses.h"
#include "engine/plan/step_writer.h"

namespace aliquot {

void StepWriter::reduce_what_is_complete(int32_t v) {
  const Visit& visit = visits_[v];
  const bool last_micro_batch = visit.micro_batch == policy_.micro_batch_count - 1;
  if (!last_micro_batch && !schedule_.accumulate_into_shard) return;
  for (const UnitId unit : model_.uses[visit.use]) {
    UnitState& state = units_[unit];
    const bool needed_again =
        state.next_need < state.needs.size() && visits_[state.needs[state.next_need]].micro_batch == visit.micro_batch;
    if (!needed_again && trains(unit)) reduce(unit, visit.micro_batch, last_micro_batch);
  }
}

void StepWriter::reduce(UnitId unit, int32_t micro_batch, bool last_micro_batch) {
  UnitState& state = units_[unit];
  const OperationId reduce = add(Verb::kReduce, unit, micro_batch, {{state.last_backward}});
  const bool adds = state.first_reduce != kNone;
  if (!adds) state.first_reduce = reduce;
  if (standing_gradients()) standing_writes_.push_back({state.first_backward, unit, state.last_reduce});
  state.last_reduce = reduce;
  add_reduce_buffers(unit, reduce, schedule_.sums_in_levels ? closed_levels(micro_batch) > 0 : adds);
  if (schedule_.sums_in_levels) add_level(unit, reduce, micro_batch, last_micro_batch);
  state.first_backward = kNone;
  if (!last_micro_batch) return;
  // Beside the next unit's reduce: links between replicas are others than those inside.
  if (replicated()) exchange(unit, micro_batch);
  if (schedule_.zero_stage == 0) state.spread = add(Verb::kSpread, unit, micro_batch);
  if (policy_.update_in_backward) update(unit, micro_batch, {});
}

void StepWriter::add_reduce_buffers(UnitId unit, OperationId reduce, bool adds) {
  const UnitState& state = units_[unit];
  const Precision& precision = policy_.precision;
  const DType partial = schedule_.sums_in_levels || replicated() ? DType::kFloat32 : precision.gradients;
  const bool peers_read = !encodes_gradients(plan_) || meets_in_node(plan_);
  for (const int32_t f : flats_of_[unit]) {
    if (!flats_[f].trainable) continue;
    if (!standing_gradients()) {
      add_buffer({.role = Role::kGradients,
                  .category = Category::kSlots,
                  .flat = f,
                  .size_bytes = whole_bytes(f, precision.gradients),
                  .first = state.first_backward,
                  .last = reduce},
                 {{reduce, peers_read && precision.sent() == precision.gradients}});
    }
    if (precision.sent() != precision.gradients) {
      add_buffer({.role = Role::kSent,
                  .category = Category::kCommunication,
                  .flat = f,
                  .size_bytes = whole_bytes(f, precision.sent()),
                  .first = reduce,
                  .last = reduce},
                 {{reduce, peers_read}});
    }
    if (encodes_gradients(plan_)) add_encoded_buffers(f, reduce);
    if (!adds) continue;  // it is the sum, or what waits at a level
    add_buffer({.role = Role::kPartial,
                .category = Category::kCommunication,
                .flat = f,
                .size_bytes = shard_bytes(flats_[f], partial),
                .first = reduce,
                .last = reduce},
               {{reduce}});
  }
}

void StepWriter::exchange(UnitId unit, int32_t micro_batch) {
  UnitState& state = units_[unit];
  state.exchange = last_exchange_ = add(Verb::kExchange, unit, micro_batch, {{state.last_reduce}});
  for (const int32_t f : flats_of_[unit]) {
    if (encodes_exchanges(plan_) && flats_[f].trainable) add_encoded_buffers(f, state.exchange);
  }
}

/// Of a reduce, or of an exchange, at whose end peers are through with it.
void StepWriter::add_encoded_buffers(int32_t flat, OperationId reduce) {
  const bool exchanges = encodes_exchanges(plan_);
  for (const Role role : {Role::kMet, Role::kNodeSums, Role::kEncodedSums, Role::kEncodedReceived}) {
    if (role == Role::kMet && (exchanges || !meets_in_node(plan_))) continue;
    const bool peers_read = role == Role::kEncodedSums, received = role == Role::kEncodedReceived;
    add_buffer({.role = role,
                .category = Category::kCommunication,
                .flat = flat,
                .space = exchanges && (peers_read || received) ? Space::kPeers : Space::kArena,
                .size_bytes = needed_bytes(plan_, role, flat),
                .first = reduce,
                .last = reduce},
               {{reduce, peers_read && !exchanges}});
  }
}

/// Micro-batch a closes as many sums as its number ends in ones: two of one micro-batch, then two of two, ... What it
/// leaves waits for its other half at the next level; the last leaves the whole in kReduced.
void StepWriter::add_level(UnitId unit, OperationId reduce, int32_t micro_batch, bool last_micro_batch) {
  UnitState& state = units_[unit];
  const auto closed = static_cast<std::size_t>(closed_levels(micro_batch));
  state.levels.resize(std::max(state.levels.size(), closed + 1), kNone);
  for (std::size_t level = 0; level < closed; ++level) {
    for (const int32_t f : flats_of_[unit]) {
      if (!flats_[f].trainable) continue;
      add_buffer({.role = level_role(static_cast<int>(level)),
                  .category = Category::kCommunication,
                  .flat = f,
                  .size_bytes = shard_bytes(flats_[f], DType::kFloat32),
                  .first = state.levels[level],
                  .last = reduce},
                 {{reduce}});
    }
    state.levels[level] = kNone;
  }
  if (!last_micro_batch) state.levels[closed] = reduce;
}

void StepWriter::finish_step() {
  const int32_t m = policy_.micro_batch_count - 1;
  const OperationId norm = add(Verb::kNorm, 0, m);
  wait(norm, {last_exchange_});
  if (!policy_.update_in_backward) update_all(norm);
  for (UnitId unit = 0; unit < static_cast<UnitId>(units_.size()); ++unit) {
    if (trains(unit)) add_sums(unit, norm);
  }
  add_buffer({.role = Role::kNormParts,
              .category = Category::kCommunication,
              .flat = -1,
              .size_bytes = norm_part_bytes(flats_) * rank_count_,
              .first = norm,
              .last = norm},
             {{norm, true}});
}

void StepWriter::update(UnitId unit, int32_t micro_batch, std::vector<Wait> after) {
  UnitState& state = units_[unit];
  state.update = add(Verb::kUpdate, unit, micro_batch, std::move(after));
  // Nobody may still be reading what the update writes.
  if (stage3() && policy_.quantize_weights) {
    wait(state.update, {state.refresh});
  } else if (stage3()) {
    wait(state.update, schedule_.view ? Wait{state.last_release, true} : Wait{state.last_gather, true});
  }
  if (publishes()) state.publish = add(Verb::kPublish, unit, micro_batch, {{state.update}});
}

void StepWriter::add_sums(UnitId unit, OperationId norm) {
  const UnitState& state = units_[unit];
  for (const int32_t f : flats_of_[unit]) {
    if (!flats_[f].trainable) continue;
    const int64_t squares = flats_[f].layout.shard_count() / kBlockElements * static_cast<int64_t>(sizeof(double));
    add_buffer({.role = Role::kSquares,
                .category = Category::kCommunication,
                .flat = f,
                .space = replicated() ? Space::kPeers : Space::kArena,
                .size_bytes = squares,
                .first = replicated() ? state.exchange : state.last_reduce,
                .last = norm},
               {{norm}});
    if (schedule_.reduces_in_place) continue;
    if (replicated()) add_across(unit, f);
    const bool spread = state.spread != kNone;
    const OperationId used = flats_[f].matrices ? group_states_[group_of_unit_[unit]].blend : state.update;
    const OperationId last = spread ? state.spread : used;
    add_buffer({.role = Role::kReduced,
                .category = standing_gradients() ? Category::kCommunication : Category::kGradients,
                .flat = f,
                .space = replicated() ? Space::kPeers : Space::kArena,
                .size_bytes = shard_bytes(flats_[f], policy_.precision.gradients),
                .first = replicated()               ? state.exchange
                         : schedule_.sums_in_levels ? state.last_reduce
                                                    : state.first_reduce,
                .last = last},
               {{last, spread}});
  }
}

/// What a replica adds up until the others' sums are added to it. Peers are through with it when the exchange is.
void StepWriter::add_across(UnitId unit, int32_t flat) {
  const UnitState& state = units_[unit];
  add_buffer({.role = Role::kAcross,
              .category = Category::kCommunication,
              .flat = flat,
              .space = Space::kPeers,
              .size_bytes = shard_bytes(flats_[flat], DType::kFloat32),
              .first = state.first_reduce,
              .last = state.exchange},
             {{state.exchange}});
}

/// One buffer for all operations of that verb: their lane runs them one after the other. The buffer lies in memory of the group
/// that reduces, because that memory outlives messages that are still under way after a failure.
void StepWriter::add_staging(Verb verb, Role role) {
  const int64_t size_bytes = needed_bytes(plan_, role, -1);
  const auto& operations = draft_.operations;
  const auto is_one = [verb](const Operation& operation) { return operation.verb == verb; };
  const auto first = std::ranges::find_if(operations, is_one);
  if (size_bytes == 0 || first == operations.end()) return;
  const auto last = std::find_if(operations.rbegin(), operations.rend(), is_one).base() - 1;
  const auto id_of = [&](auto at) { return static_cast<OperationId>(at - operations.begin()); };
  add_buffer({.role = role,
              .category = Category::kCommunication,
              .flat = -1,
              .space = role == Role::kExchangeStaging ? Space::kPeers : Space::kArena,
              .size_bytes = size_bytes,
              .first = id_of(first),
              .last = id_of(last)},
             {{id_of(last)}});
}

void StepWriter::add_waits_on_previous_step() {
  for (const auto& [gather, unit] : first_gathers_) wait(gather, {units_[unit].update, true, true});
  std::vector<bool> seen(units_.size(), false);
  for (OperationId id = 0; id < static_cast<OperationId>(draft_.operations.size()); ++id) {
    const Operation& operation = draft_.operations[id];
    if (operation.verb != Verb::kForward) continue;
    for (const UnitId unit : model_.uses[operation.place]) {
      if (!seen[unit] && !stage3()) wait(id, {publishes() ? units_[unit].publish : units_[unit].update, false, true});
      seen[unit] = true;
    }
  }
  for (UnitState& state : units_) wait(state.update, {state.publish, true, true});
  for (const StandingWrite& write : standing_writes_) {
    if (write.reduce_before != kNone) {  // a later micro-batch
      wait(write.backward, {write.reduce_before, true});
      continue;
    }
    wait(write.backward, {units_[write.unit].last_reduce, true, true});
    wait(write.backward, {units_[write.unit].spread, true, true});
    wait(write.backward, {units_[write.unit].update, false, true});
    if (const int32_t group = group_of_unit_[write.unit]; group != kNone)
      wait(write.backward, {group_states_[group].blend, false, true});
  }
}

constexpr bool is_of_a_reduce(Role role) {
  return role == Role::kGradients || role == Role::kPartial || role == Role::kSent ||
         (role >= Role::kMet && role <= Role::kEncodedReceived);
}

/// What a reduce reads and writes is not handed to the very next backward, which would have to wait for it: one more
/// slot, and each reduce runs beside the backward that follows it, or the next micro-batch's first forward.
void StepWriter::spare_a_gradient_slot() {
  const auto count = static_cast<OperationId>(draft_.operations.size());
  for (auto& [buffer, ends] : draft_.buffers) {
    if (!is_of_a_reduce(buffer.role)) continue;
    OperationId next = buffer.last;
    const auto runs_beside = [](Verb verb) { return verb == Verb::kForward || verb == Verb::kBackward; };
    while (next < count && !runs_beside(draft_.operations[next].verb)) ++next;
    if (next < count) buffer.last = next;
  }
}

void StepWriter::add_standing_buffers() {
  const Precision& precision = policy_.precision;
  for (int32_t f = 0; f < static_cast<int32_t>(flats_.size()); ++f) {
    const bool whole = !stage3();
    add_standing(Role::kParameters, Category::kParameters, f,
                 whole ? whole_bytes(f, precision.compute) : shard_bytes(flats_[f], precision.compute));
    const int64_t count = updated_count(f);
    if (policy_.quantize_weights)
      add_standing(Role::kEncodedShards, Category::kParameters, f, needed_bytes(plan_, Role::kEncodedShards, f));
    if (!flats_[f].trainable) continue;  // its working copy is all there is of it
    if (precision.has_master()) add_standing(Role::kMaster, Category::kOptimizer, f, count * precision.master_bytes());
    if (const int64_t bytes = plan_.state_bytes_per_block(f); bytes > 0)
      add_standing(Role::kOptimizer, Category::kOptimizer, f, count / kBlockElements * bytes);
    if (encodes_gradients(plan_) || encodes_exchanges(plan_))
      add_standing(Role::kCarried, Category::kCommunication, f, needed_bytes(plan_, Role::kCarried, f));
    if (const int64_t table = segment_bytes(flats_[f], topology_, schedule_.zero_stage); table > 0)
      add_standing(Role::kSegments, Category::kCommunication, f, table);
    if (standing_gradients())
      add_standing(Role::kGradients, Category::kGradients, f, whole_bytes(f, precision.gradients));
  }
}

void StepWriter::add_standing(Role role, Category category, int32_t flat, int64_t size_bytes) {
  add_buffer({.role = role,
              .category = category,
              .flat = flat,
              .space = role == Role::kParameters && schedule_.view ? Space::kSharedRange : Space::kArena,
              .always = true,
              .size_bytes = size_bytes,
              .first = 0,
              .last = static_cast<OperationId>(draft_.operations.size()) - 1},
             {});
}

}  // namespace aliquot
