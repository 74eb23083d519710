#include "engine/writer.h"

#include <algorithm>

namespace aliquot {
namespace {

constexpr OperationId kNone = -1;

/// One opening of a use by the model.
struct Visit {
  bool backward;
  int32_t use;
  int32_t micro_batch;
};

/// What is known of a unit while its step is written.
struct UnitState {
  std::vector<int32_t> needs;  // visits that need it, in order
  std::size_t next_need = 0;   // index into needs of the first one not yet written
  bool gathered = false;
  bool gathered_before = false;  // in this step
  OperationId last_gather = kNone, last_release = kNone;
  OperationId first_backward = kNone;  // since its gradients were last empty
  OperationId last_backward = kNone;
  OperationId first_reduce = kNone, last_reduce = kNone, spread = kNone, update = kNone, publish = kNone;
};

/// The first backward of a micro-batch into gradients that always have a place, and who read them last in this step.
struct StandingWrite {
  OperationId backward;
  UnitId unit;
  OperationId reduce_before;
};

class Writer {
 public:
  explicit Writer(const Plan& plan)
      : model_(plan.model),
        policy_(plan.policy),
        schedule_(plan.schedule),
        flats_(plan.flats),
        one_node_(plan.topology.one_node()),
        rank_count_(plan.topology.rank_count()),
        flats_of_(plan.flats_of_unit),
        units_(plan.model.units.size()) {
    list_visits();
  }

  Draft write() {
    for (int32_t v = 0; v < static_cast<int32_t>(visits_.size()); ++v) write_visit(v);
    finish_step();
    add_waits_on_previous_step();
    if (policy_.prefetch > 0) spare_a_gradient_slot();
    add_standing_buffers();
    return std::move(draft_);
  }

 private:
  bool stage3() const { return schedule_.zero_stage == 3; }
  bool standing_gradients() const { return schedule_.zero_stage <= 1; }
  bool trains(UnitId unit) const {
    return std::any_of(flats_of_[unit].begin(), flats_of_[unit].end(), [&](int32_t f) { return flats_[f].trainable; });
  }

  void list_visits() {
    const auto uses = static_cast<int32_t>(model_.uses.size());
    for (int32_t m = 0; m < policy_.micro_batch_count; ++m) {
      for (int32_t u = 0; u < uses; ++u) visits_.push_back({false, u, m});
      for (int32_t u = uses - 1; u >= 0; --u) visits_.push_back({true, u, m});
    }
    for (int32_t v = 0; v < static_cast<int32_t>(visits_.size()); ++v) {
      for (const UnitId unit : model_.uses[visits_[v].use]) units_[unit].needs.push_back(v);
    }
  }

  OperationId add(Verb verb, Lane lane, int32_t place, int32_t micro_batch, std::vector<Wait> after = {}) {
    draft_.operations.push_back({verb, lane, place, micro_batch, std::move(after)});
    return static_cast<OperationId>(draft_.operations.size()) - 1;
  }
  void wait(OperationId operation, Wait wait) {
    if (operation != kNone && wait.operation != kNone) draft_.operations[operation].after.push_back(wait);
  }

  void write_visit(int32_t v) {
    const Visit& visit = visits_[v];
    if (stage3()) {
      const auto last = std::min<int32_t>(v + policy_.prefetch, static_cast<int32_t>(visits_.size()) - 1);
      for (int32_t w = v; w <= last; ++w) gather_for(w);
    }
    const OperationId compute =
        add(visit.backward ? Verb::kBackward : Verb::kForward, Lane::kCompute, visit.use, visit.micro_batch);
    for (const UnitId unit : model_.uses[visit.use]) {
      UnitState& state = units_[unit];
      if (stage3()) wait(compute, {state.last_gather});
      ++state.next_need;
      if (visit.backward && trains(unit)) {
        if (state.first_backward == kNone) state.first_backward = compute;
        state.last_backward = compute;
      }
    }
    for (const UnitId unit : model_.uses[visit.use]) {
      if (stage3() && lets_go(unit, v)) release(unit, v);
    }
    if (visit.backward) reduce_what_is_complete(v);
  }

  void gather_for(int32_t v) {
    for (const UnitId unit : model_.uses[visits_[v].use]) {
      UnitState& state = units_[unit];
      if (state.gathered) continue;
      state.gathered = true;
      state.last_gather = add(Verb::kGather, Lane::kGather, unit, visits_[v].micro_batch);
      if (!state.gathered_before) first_gathers_.push_back({state.last_gather, unit});
      state.gathered_before = true;
    }
  }

  /// Whether nothing wants the unit whole soon: a gather that prefetch would issue at once is not worth a release.
  bool lets_go(UnitId unit, int32_t v) const {
    const UnitState& state = units_[unit];
    if (state.next_need == state.needs.size()) return true;
    const auto uses = static_cast<int32_t>(model_.uses.size());
    const bool kept = !visits_[v].backward && visits_[v].use >= uses - policy_.keep_gathered;
    return !kept && state.needs[state.next_need] > v + std::max(policy_.prefetch, 1);
  }

  void release(UnitId unit, int32_t v) {
    UnitState& state = units_[unit];
    state.last_release = add(Verb::kRelease, Lane::kCompute, unit, visits_[v].micro_batch);
    state.gathered = false;
    if (schedule_.view) return;
    std::vector<Wait> ends = {{state.last_release}};
    if (!one_node_) ends.push_back({state.last_gather, true});  // a node's ranks read one another's slots
    for (const int32_t f : flats_of_[unit]) {
      add_buffer(Role::kGathered, Category::kSlots, f, whole_bytes(f), state.last_gather, state.last_release, ends);
    }
  }

  void reduce_what_is_complete(int32_t v) {
    const Visit& visit = visits_[v];
    const bool last_micro_batch = visit.micro_batch == policy_.micro_batch_count - 1;
    if (!last_micro_batch && !schedule_.accumulate_into_shard) return;
    for (const UnitId unit : model_.uses[visit.use]) {
      UnitState& state = units_[unit];
      const bool needed_again = state.next_need < state.needs.size() &&
                                visits_[state.needs[state.next_need]].micro_batch == visit.micro_batch;
      if (!needed_again && trains(unit)) reduce(unit, visit.micro_batch, last_micro_batch);
    }
  }

  void reduce(UnitId unit, int32_t micro_batch, bool last_micro_batch) {
    UnitState& state = units_[unit];
    const OperationId reduce = add(Verb::kReduce, Lane::kReduce, unit, micro_batch, {{state.last_backward}});
    const bool adds = state.first_reduce != kNone;
    if (!adds) state.first_reduce = reduce;
    if (standing_gradients()) standing_writes_.push_back({state.first_backward, unit, state.last_reduce});
    state.last_reduce = reduce;
    for (const int32_t f : flats_of_[unit]) {
      if (!flats_[f].trainable) continue;
      if (!standing_gradients()) {
        add_buffer(Role::kGradients, Category::kSlots, f, whole_bytes(f), state.first_backward, reduce,
                   {{reduce, true}});
      }
      if (adds) add_buffer(Role::kPartial, Category::kCommunication, f, shard_bytes(f), reduce, reduce, {{reduce}});
    }
    state.first_backward = kNone;
    if (last_micro_batch && schedule_.zero_stage == 0) {
      state.spread = add(Verb::kSpread, Lane::kReduce, unit, micro_batch);
    }
  }

  void finish_step() {
    const int32_t m = policy_.micro_batch_count - 1;
    const OperationId norm = add(Verb::kNorm, Lane::kReduce, 0, m);
    for (UnitId unit = 0; unit < static_cast<UnitId>(units_.size()); ++unit) {
      UnitState& state = units_[unit];
      if (!trains(unit)) continue;
      state.update = add(Verb::kUpdate, Lane::kCompute, unit, m, {{norm}});
      // Nobody may still be reading what the update writes.
      if (stage3()) wait(state.update, schedule_.view ? Wait{state.last_release, true} : Wait{state.last_gather, true});
      const bool publishes = schedule_.zero_stage == 1 || schedule_.zero_stage == 2;
      if (publishes) state.publish = add(Verb::kPublish, Lane::kGather, unit, m, {{state.update}});
      add_sums(unit, norm);
    }
    add_buffer(Role::kNormParts, Category::kCommunication, -1, norm_part_bytes(flats_) * rank_count_, norm, norm,
               {{norm, true}});
  }

  void add_sums(UnitId unit, OperationId norm) {
    const UnitState& state = units_[unit];
    for (const int32_t f : flats_of_[unit]) {
      if (!flats_[f].trainable) continue;
      const int64_t squares = flats_[f].layout.shard_count() / kBlockElements * static_cast<int64_t>(sizeof(double));
      add_buffer(Role::kSquares, Category::kCommunication, f, squares, state.last_reduce, norm, {{norm}});
      const bool in_place = standing_gradients() && !schedule_.accumulate_into_shard;
      if (in_place) continue;
      const Category category = standing_gradients() ? Category::kCommunication : Category::kGradients;
      const bool spread = state.spread != kNone;
      const OperationId last = spread ? state.spread : state.update;
      add_buffer(Role::kReduced, category, f, shard_bytes(f), state.first_reduce, last, {{last, spread}});
    }
  }

  void add_waits_on_previous_step() {
    for (const auto& [gather, unit] : first_gathers_) wait(gather, {units_[unit].update, true, true});
    std::vector<bool> seen(units_.size(), false);
    for (OperationId id = 0; id < static_cast<OperationId>(draft_.operations.size()); ++id) {
      const Operation& operation = draft_.operations[id];
      if (operation.verb != Verb::kForward) continue;
      for (const UnitId unit : model_.uses[operation.place]) {
        if (!seen[unit]) wait(id, {units_[unit].publish, false, true});
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
    }
  }

  /// What a reduce reads and writes is not handed to the very next backward, which would have to wait for it: one more
  /// slot, and each reduce runs beside the backward that follows it.
  void spare_a_gradient_slot() {
    const auto count = static_cast<OperationId>(draft_.operations.size());
    for (auto& [buffer, ends] : draft_.buffers) {
      if (buffer.role != Role::kGradients && buffer.role != Role::kPartial) continue;
      OperationId next = buffer.last;
      while (next < count && draft_.operations[next].verb != Verb::kBackward) ++next;
      if (next < count) buffer.last = next;
    }
  }

  void add_standing_buffers() {
    const auto last = static_cast<OperationId>(draft_.operations.size()) - 1;
    for (int32_t f = 0; f < static_cast<int32_t>(flats_.size()); ++f) {
      const int64_t parameters = stage3() ? shard_bytes(f) : whole_bytes(f);
      add_standing(Role::kParameters, Category::kParameters, f, parameters, last);
      if (!flats_[f].trainable) continue;
      const int64_t count = flats_[f].layout.shard_count() * (schedule_.zero_stage == 0 ? rank_count_ : 1);
      if (policy_.state_bytes_per_parameter > 0) {
        add_standing(Role::kOptimizer, Category::kOptimizer, f, count * policy_.state_bytes_per_parameter, last);
      }
      if (standing_gradients()) add_standing(Role::kGradients, Category::kGradients, f, whole_bytes(f), last);
    }
  }

  void add_standing(Role role, Category category, int32_t flat, int64_t size_bytes, OperationId last) {
    add_buffer(role, category, flat, size_bytes, 0, last, {});
    PlannedBuffer& buffer = draft_.buffers.back().buffer;
    buffer.always = true;
    buffer.in_shared_range = role == Role::kParameters && schedule_.view;
  }

  void add_buffer(Role role, Category category, int32_t flat, int64_t size_bytes, OperationId first, OperationId last,
                  std::vector<Wait> ends) {
    draft_.buffers.push_back({{role, category, flat, false, false, size_bytes, 0, first, last}, std::move(ends)});
  }

  int64_t shard_bytes(int32_t flat) const {
    const FlatLayout& layout = flats_[flat].layout;
    return layout.shard_count() * element_bytes(layout.tensors().front().dtype);
  }
  int64_t whole_bytes(int32_t flat) const { return shard_bytes(flat) * rank_count_; }

  const ModelSpec& model_;
  const Policy& policy_;
  const Schedule& schedule_;
  const std::vector<FlatSpec>& flats_;
  bool one_node_;
  int rank_count_;
  const std::vector<std::vector<int32_t>>& flats_of_;
  std::vector<Visit> visits_;
  std::vector<UnitState> units_;
  std::vector<std::pair<OperationId, UnitId>> first_gathers_;
  std::vector<StandingWrite> standing_writes_;
  Draft draft_;
};

}  // namespace

Draft write(const Plan& plan) { return Writer(plan).write(); }

void prune(std::vector<Operation>& operations) {
  // latest[lane][source lane][kind]: the last operation waited for; kinds: on this rank, on all, and both of the step before.
  struct Seen {
    OperationId operation[2][2] = {{kNone, kNone}, {kNone, kNone}};
  };
  Seen seen[kLaneCount][kLaneCount];
  for (Operation& operation : operations) {
    std::vector<Wait> kept;
    std::stable_sort(operation.after.begin(), operation.after.end(),
                     [](const Wait& a, const Wait& b) { return a.operation > b.operation; });
    for (const Wait& wait : operation.after) {
      const Lane source = operations[wait.operation].lane;
      auto& latest = seen[static_cast<int>(operation.lane)][static_cast<int>(source)].operation[wait.of_previous_step];
      const bool kept_by_order = !wait.on_all && source == operation.lane;
      if (kept_by_order || latest[1] >= wait.operation || (!wait.on_all && latest[0] >= wait.operation)) continue;
      // A wait for something of this step covers all of the step before.
      const auto& now = seen[static_cast<int>(operation.lane)][static_cast<int>(source)].operation[0];
      if (wait.of_previous_step && (now[1] != kNone || (!wait.on_all && now[0] != kNone))) continue;
      latest[wait.on_all] = std::max(latest[wait.on_all], wait.operation);
      kept.push_back(wait);
    }
    std::sort(kept.begin(), kept.end(), [](const Wait& a, const Wait& b) { return a.operation < b.operation; });
    operation.after = std::move(kept);
  }
}

}  // namespace aliquot
