#include "engine/plan/writer/writer.h"

#include <algorithm>

#include "engine/plan/pipeline.h"
#include "engine/plan/sizes.h"
#include "engine/plan/use_collectives.h"
#include "engine/plan/writer/step_writer.h"

namespace aliquot {

StepWriter::StepWriter(const Plan& plan, const StagePasses& passes)
    : plan_(plan),
      model_(plan.model),
      policy_(plan.policy),
      schedule_(plan.schedule),
      stage_(plan.stage),
      flats_(plan.flats),
      flats_of_(plan.flats_of_unit),
      one_node_(plan.topology.one_node()),
      rank_count_(plan.topology.rank_count()),
      recipes_(plan),
      recomputed_(recomputed_uses(plan)),
      split_(split_uses(plan)),
      interleaved_(units_with_interleaved_gradients(plan)),
      units_(plan.model.units.size()),
      group_of_unit_(plan.model.units.size(), kNone),
      group_states_(plan.matrix_groups.size()),
      kept_activations_(plan.model.uses.size() * static_cast<std::size_t>(schedule_.micro_batches_in_flight)),
      activation_gradients_(static_cast<std::size_t>(schedule_.micro_batches_in_flight)) {
  for (int32_t group = 0; group < static_cast<int32_t>(plan.matrix_groups.size()); ++group) {
    for (const int32_t f : plan.matrix_groups[group].flats) group_of_unit_[flats_[f].unit] = group;
  }
  list_visits(passes);
}

ScheduleDraft StepWriter::write() {
  for (int32_t v = 0; v < static_cast<int32_t>(visits_.size()); ++v) write_visit(v);
  if (policy_.updates()) {
    finish_step();
    add_staging(Verb::kReduce, Role::kReduceStaging);
    add_staging(Verb::kSumOverTensor, Role::kTensorSumStaging);
    add_staging(Verb::kReplicaAllReduce, Role::kExchangeStaging);
    add_waits_on_previous_step();
    if (policy_.prefetch > 0) add_spare_gradient_slot();
  }
  if (policy_.prefetch > 0) add_spare_send_slots();
  add_waits_of_refreshes();
  add_staging(Verb::kUseCollective, Role::kCollectiveStaging);
  add_persistent_buffers();
  if (policy_.check) draft_.alignment_bytes = kPlacePageBytes;
  return std::move(draft_);
}

bool StepWriter::trains(UnitId unit) const {
  return std::any_of(flats_of_[unit].begin(), flats_of_[unit].end(), [&](int32_t f) { return plan_.trains(f); });
}

Lane StepWriter::lane_of(Verb verb) const {
  if (is_transfer(verb)) {
    const bool to_next = info(verb).group == GroupId::kNextStage;
    const int boundary = (stage_.index + (to_next ? 0 : stage_.count - 1)) % stage_.count;
    if (transfers_activations(verb)) return boundary % 2 == 0 ? Lane::kForward0 : Lane::kForward1;
    return boundary % 2 == 0 ? Lane::kBackward0 : Lane::kBackward1;
  }
  // A gather as a view transfers no data. It only waits until the shards are written, and needs no other thread for
  // that.
  if (verb == Verb::kGather && schedule_.view) return Lane::kCompute;
  // By default, updates run on the compute lane at the end of the step, when it would be idle. With update_in_backward,
  // they run on the lane that reduces gradients, in parallel with compute.
  if (verb == Verb::kUpdate && policy_.update_in_backward)
    return info(has_replicas() ? Verb::kReplicaAllReduce : Verb::kReduce).lane;
  return info(verb).lane;
}

OperationId StepWriter::add(Verb verb, int32_t operand, int32_t micro_batch, std::vector<Wait> after) {
  draft_.operations.push_back({verb, info(verb).group, lane_of(verb), operand, micro_batch, std::move(after)});
  return static_cast<OperationId>(draft_.operations.size()) - 1;
}

void StepWriter::wait(OperationId operation, Wait wait) {
  if (operation != kNone && wait.operation != kNone) draft_.operations[operation].after.push_back(wait);
}

Category StepWriter::category_of(Role role) const {
  if (role == Role::kGradients && has_persistent_gradients()) return Category::kGradients;
  if (role == Role::kReducedGradients && has_persistent_gradients()) return Category::kCommunication;
  return info(role).category;
}

Space StepWriter::space_of(Role role) const {
  return role == Role::kParameters && schedule_.view ? Space::kSharedRange : info(role).space;
}

void StepWriter::add_buffer(Role role, int32_t flat, Lifetime life, std::vector<Wait> ends) {
  draft_.buffers.push_back({{.role = role,
                             .category = category_of(role),
                             .flat = flat,
                             .space = space_of(role),
                             .size_bytes = needed_bytes(plan_, role, flat),
                             .first = life.first,
                             .last = life.last},
                            std::move(ends)});
}

void StepWriter::list_visits(const StagePasses& passes) {
  // `earlier` counts the passes of each virtual stage so far. counted() returns the index of the count for `run`. With
  // tied ends, virtual stage 0 uses the count of the last virtual stage, because these two share units.
  const auto counted = [&](const VirtualStage* run) {
    return static_cast<std::size_t>(run->is_first() && stage_.tied_ends ? stage_.runs.size() - 1
                                                                        : run - stage_.runs.data());
  };
  std::vector<int32_t> earlier(stage_.runs.size(), 0);
  std::vector<PipelineAction> receives;
  for (std::size_t i = 0; i < passes.actions.size(); ++i) {
    const std::size_t first = visits_.size();
    receives.insert(receives.end(), passes.receives[i].begin(), passes.receives[i].end());
    list_pass(passes.actions[i]);
    if (visits_.size() == first) continue;  // the pass computes gradients of weights, but splits no use
    int32_t& passes_before = earlier[counted(visits_[first].run)];
    for (std::size_t v = first; v < visits_.size(); ++v) visits_[v].pass = passes_before;
    visits_[first].receives = std::exchange(receives, {});
    visits_.back().ends_pass = true;
    const bool counts = passes.actions[i].pass != PassKind::kBackwardWeights;  // that pass needs no parameters
    if (counts && (!visits_.back().run->is_first() || !stage_.tied_ends)) ++passes_before;
  }
  for (int32_t v = 0; v < static_cast<int32_t>(visits_.size()); ++v) {
    const int32_t use = visits_[v].use;
    for (const UnitId unit : model_.uses[use]) {
      UnitState& state = units_[unit];
      if (reads_parameters(visits_[v].verb)) state.needs.push_back(v);
      if (state.first_use == kNone || use < state.first_use) state.first_use = use;
    }
  }
}

void StepWriter::list_pass(const PipelineAction& pass) {
  const VirtualStage& run = stage_.run(pass.stage);
  if (pass.pass == PassKind::kForward) {
    for (int32_t u = run.first_use; u < run.end_use; ++u) add_visit(Verb::kForward, u, pass);
    return;
  }
  for (int32_t u = run.last_use(); u >= run.first_use; --u) {
    if (pass.pass == PassKind::kBackwardWeights) {
      if (split_[u]) add_visit(Verb::kBackwardWeights, u, pass);
      continue;
    }
    if (recomputed_[u]) add_visit(Verb::kRecompute, u, pass);
    const bool split = pass.pass == PassKind::kBackwardInput && split_[u];
    add_visit(split ? Verb::kBackwardInput : Verb::kBackward, u, pass);
  }
}

void StepWriter::add_visit(Verb verb, int32_t use, const PipelineAction& pass) {
  const bool with_last =
      verb == Verb::kBackwardWeights || (!visits_.empty() && visits_.back().verb == Verb::kRecompute);
  const int32_t place = visits_.empty() ? 0 : visits_.back().position + (with_last ? 0 : 1);
  visits_.push_back({verb, use, pass.micro_batch, place, &stage_.run(pass.stage)});
}

void StepWriter::write_visit(int32_t v) {
  const Visit& visit = visits_[v];
  for (const PipelineAction& pass : visit.receives) receive(pass);
  if (is_zero_stage_3()) {
    // A view transfers no data, so there is nothing to prefetch.
    const int32_t last = visit.position + (schedule_.view ? 0 : policy_.prefetch);
    for (int32_t w = v; w < static_cast<int32_t>(visits_.size()) && visits_[w].position <= last; ++w) gather_for(w);
  }
  const OperationId compute = add(visit.verb, visit.use, visit.micro_batch), last = add_collectives(visit, compute);
  wait_for_transfers(visit, compute);
  for (const UnitId unit : model_.uses[visit.use]) {
    if (reads_parameters(visit.verb)) {
      if (is_zero_stage_3()) wait(compute, {units_[unit].last_gather});
      ++units_[unit].next_need;
    }
    if (computes_weight_gradients(visit.verb) && trains(unit)) {
      Lifetime& written = gradients(unit, visit.micro_batch);
      if (written.first == kNone) written.first = compute;
      written.last = last;
    }
  }
  for (const UnitId unit : model_.uses[visit.use]) {
    if (is_zero_stage_3() && reads_parameters(visit.verb) && should_release(unit, v)) release(unit, v);
  }
  track_activations(v, {compute, last});
  if (!computes_weight_gradients(visit.verb)) return;
  digest_gradients(v);
  if (policy_.updates()) reduce_complete_units(v);
}

/// Adds the collectives of a visit. Returns the last operation of the visit.
OperationId StepWriter::add_collectives(const Visit& visit, OperationId compute) {
  OperationId last = compute;
  if (policy_.tensor == 1 || model_.activations.uses.empty()) return last;
  const UseActivations& use = model_.activations.uses[visit.use];
  for (auto next = next_collective(use, visit.verb); next; next = next_collective(use, visit.verb, *next)) {
    last = add(Verb::kUseCollective, visit.use, visit.micro_batch);
    draft_.operations.back().collective = *next;
  }
  return last;
}

void StepWriter::gather_for(int32_t v) {
  if (!reads_parameters(visits_[v].verb)) return;
  for (const UnitId unit : model_.uses[visits_[v].use]) {
    UnitState& state = units_[unit];
    if (state.gathered) continue;
    state.gathered = true;
    state.gathered_for_pass = visits_[v].pass;
    if (policy_.quantize_weights && !state.gathered_before) gather_quantized_shards(unit, visits_[v].micro_batch);
    state.last_gather = add(Verb::kGather, unit, visits_[v].micro_batch);
    const OperationId gather = state.last_gather;
    for (const int32_t f : flats_of_[unit]) {
      if (policy_.quantize_weights && has_several_ranks_per_node(plan_))
        add_buffer(Role::kQuantizedParameters, f, {gather, gather}, {{gather}});
    }
    if (!state.gathered_before && !policy_.quantize_weights) first_gathers_.push_back({state.last_gather, unit});
    state.gathered_before = true;
  }
}

/// Adds a kGatherQuantizedShards operation, once per step and unit, because only the update changes a shard.
void StepWriter::gather_quantized_shards(UnitId unit, int32_t micro_batch) {
  units_[unit].refresh = add(Verb::kGatherQuantizedShards, unit, micro_batch);
  first_gathers_.push_back({units_[unit].refresh, unit});
}

/// Makes each kGatherQuantizedShards wait until other ranks have finished reading the quantized shards of the previous
/// step.
void StepWriter::add_waits_of_refreshes() {
  for (const UnitState& state : units_) {
    if (state.refresh != kNone) wait(state.refresh, {state.last_gather, GroupId::kShard, true});
  }
}

/// Whether to release the unit after visit `v`, a forward or backward of one use. If prefetch would gather the unit
/// again right away, it stays gathered. With `gather_for`, it stays gathered for that many forward and backward passes.
bool StepWriter::should_release(UnitId unit, int32_t v) const {
  const UnitState& state = units_[unit];
  if (state.next_need == state.needs.size()) return true;
  const Visit& visit = visits_[v];
  const int64_t passes = visit.pass - state.gathered_for_pass + 1;
  if (passes < 2 * int64_t{policy_.gather_for}) return false;
  const bool kept = visit.verb == Verb::kForward && visit.use >= stage_.runs.back().end_use - policy_.keep_gathered;
  return !kept && visits_[state.needs[state.next_need]].position > visit.position + std::max(policy_.prefetch, 1);
}

void StepWriter::release(UnitId unit, int32_t v) {
  UnitState& state = units_[unit];
  state.last_release = add(Verb::kRelease, unit, visits_[v].micro_batch);
  state.gathered = false;
  if (schedule_.view) return;
  std::vector<Wait> ends = {{state.last_release}};
  if (!one_node_ && !policy_.quantize_weights)
    ends.push_back({state.last_gather, GroupId::kShard});  // ranks of a node read parts from one another's slots
  for (const int32_t f : flats_of_[unit]) add_buffer(Role::kGathered, f, {state.last_gather, state.last_release}, ends);
}

ScheduleDraft write(const Plan& plan, const StagePasses& passes) { return StepWriter(plan, passes).write(); }

}  // namespace aliquot
