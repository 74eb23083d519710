#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "engine/plan/pipeline.h"
#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

constexpr OperationId kNone = -1;

struct ModelCode {
  Verb verb;
  int32_t use, micro_batch;
};

/// The model code of the stage in the order of passes. A forward pass runs the uses in the declared order, a backward
/// pass in reverse order, with a recompute before the backward of each recomputed use. If a backward pass has two
/// parts, the first one runs the whole backward of uses that are not split, and the second one skips these uses.
std::vector<ModelCode> declared_code(const Proof& proof) {
  const Plan& plan = proof.plan;
  const std::vector<bool> recomputed = recomputed_uses(plan), split = split_uses(plan);
  std::vector<ModelCode> code;
  for (const auto& [virtual_stage, pass, m] : proof.passes) {
    const VirtualStage& run = plan.stage.run(virtual_stage);
    if (pass == PassKind::kForward) {
      for (int32_t use = run.first_use; use < run.end_use; ++use) code.push_back({Verb::kForward, use, m});
      continue;
    }
    for (int32_t use = run.last_use(); use >= run.first_use; --use) {
      if (pass == PassKind::kBackwardWeights) {
        if (split[use]) code.push_back({Verb::kBackwardWeights, use, m});
        continue;
      }
      if (recomputed[use]) code.push_back({Verb::kRecompute, use, m});
      const bool in_parts = pass == PassKind::kBackwardInput && split[use];
      code.push_back({in_parts ? Verb::kBackwardInput : Verb::kBackward, use, m});
    }
  }
  return code;
}

void check_model_code(const Proof& proof) {
  const std::vector<ModelCode> code = declared_code(proof);
  std::size_t next = 0;
  const auto& operations = proof.plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Operation& operation = operations[id];
    if (!is_model_code(operation.verb)) continue;
    const bool as_declared = next < code.size() && operation.operand == code[next].use &&
                             operation.verb == code[next].verb && operation.micro_batch == code[next].micro_batch &&
                             operation.lane == Lane::kCompute;
    if (!as_declared) {
      proof.defects.add(
          DefectKind::kUse, {id},
          fmt::format("{} is out of the declared order, or not on the compute lane", proof.defects.describe(id)));
      return;
    }
    ++next;
  }
  if (next == code.size()) return;
  proof.defects.add(DefectKind::kUse, {}, "the step does not run the model code of all uses and micro-batches");
}

/// The state of a unit at ZeRO stage 3.
struct GatheredUnit {
  OperationId gather = kNone;    // kNone: the unit is not gathered
  OperationId last_use = kNone;  // last use since the gather
};

class GatherChecker {
 public:
  explicit GatherChecker(const Proof& proof) : proof_(proof), units_(proof.plan.model.units.size()) {}

  void walk() {
    const auto& operations = proof_.plan.schedule.operations;
    for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
      const Operation& operation = operations[id];
      if (operation.verb == Verb::kGather) gather(id, units_[operation.operand]);
      if (operation.verb == Verb::kRelease) release(id, units_[operation.operand]);
      if (!reads_parameters(operation.verb)) continue;
      for (const UnitId unit : proof_.plan.model.uses[operation.operand]) use(id, unit);
    }
    for (const GatheredUnit& unit : units_) {
      if (unit.gather != kNone) add({unit.gather}, fmt::format("{} has no release", describe(unit.gather)));
    }
  }

 private:
  void gather(OperationId id, GatheredUnit& unit) {
    if (unit.gather != kNone)
      add({unit.gather, id}, fmt::format("{} gathers a unit that is gathered already", describe(id)));
    unit = {id, kNone};
  }
  void use(OperationId id, UnitId unit) {
    GatheredUnit& used = units_[unit];
    if (used.gather == kNone || !ended(used.gather, id)) {
      add({id}, fmt::format("{} uses unit {}, which may not be gathered yet", describe(id),
                            proof_.plan.model.units[unit].name));
    }
    used.last_use = id;
  }
  void release(OperationId id, GatheredUnit& unit) {
    if (unit.gather == kNone) {
      add({id}, fmt::format("{} releases a unit that is not gathered", describe(id)));
    } else if (unit.last_use == kNone || !ended(unit.last_use, id) || !ended(unit.gather, id)) {
      add({id}, fmt::format("{} does not wait for the last use of its unit", describe(id)));
    }
    unit = {};
  }
  bool ended(OperationId earlier, OperationId id) const {
    const Moment now = proof_.order.moment(1, id);
    return proof_.order.ended_here(proof_.order.moment(1, earlier), proof_.order.at_start(now));
  }
  std::string describe(OperationId id) const { return proof_.defects.describe(id); }
  void add(std::vector<OperationId> operations, std::string sentence) {
    proof_.defects.add(DefectKind::kGathered, std::move(operations), std::move(sentence));
  }

  const Proof& proof_;
  std::vector<GatheredUnit> units_;
};

/// The backward operations whose gradients one reduce sums.
struct Backwards {
  int32_t count = 0;
  OperationId last = kNone;
};

/// How far the gradient of a unit has been processed in the step.
struct GradientProgress {
  /// The backward operations that are not reduced yet. Keyed by micro-batch, or by 0 if one reduce sums all
  /// micro-batches.
  std::map<int32_t, Backwards> backwards;
  OperationId last_reduce = kNone;
  OperationId tensor_sum = kNone;  // the sum over the tensor group that is not reduced yet
  int32_t reduce_count = 0, exchange_count = 0, spread_count = 0, update_count = 0, publish_count = 0;
};

class GradientChecker {
 public:
  explicit GradientChecker(const Proof& proof)
      : proof_(proof),
        schedule_(proof.plan.schedule),
        use_count_(proof.plan.model.units.size(), 0),
        begins_(schedule_.operations.size()),
        ends_(schedule_.operations.size()),
        common_gradients_(proof.plan.model.units.size(), 0),
        units_(proof.plan.model.units.size()) {
    for (const VirtualStage& run : proof.plan.stage.runs) {
      for (int32_t use = run.first_use; use < run.end_use; ++use) {
        for (const UnitId unit : proof.plan.model.uses[use]) ++use_count_[unit];
      }
    }
    for (const PlannedBuffer& buffer : schedule_.buffers) {
      if (buffer.role != Role::kGradients || buffer.micro_batch >= 0) continue;
      begins_[buffer.first].push_back(proof.plan.flats[buffer.flat].unit);
      ends_[buffer.last].push_back(proof.plan.flats[buffer.flat].unit);
    }
  }

  void walk() {
    for (OperationId id = 0; id < static_cast<OperationId>(schedule_.operations.size()); ++id) {
      for (const UnitId unit : begins_[id]) ++common_gradients_[unit];
      visit(id);
      for (const UnitId unit : ends_[id]) --common_gradients_[unit];
    }
    for (UnitId unit = 0; unit < static_cast<UnitId>(units_.size()); ++unit) finish(unit);
    if (norm_count_ != (updates() ? 1 : 0))
      add(DefectKind::kGradient, kNone,
          fmt::format("the step has {} operations norm: expected 1, or 0 in an evaluation or replay", norm_count_));
  }

 private:
  void visit(OperationId id) {
    const Operation& operation = schedule_.operations[id];
    switch (operation.verb) {
      case Verb::kBackward:
      case Verb::kBackwardWeights:
        for (const UnitId unit : proof_.plan.model.uses[operation.operand]) backward(id, unit);
        return;
      case Verb::kSumOverTensor: return sum_over_tensor(id, operation);
      case Verb::kReduce: return reduce(id, operation);
      case Verb::kReplicaAllReduce: return replica_all_reduce(id, units_[operation.operand]);
      case Verb::kAllGatherGradients: return all_gather_gradients(id, units_[operation.operand]);
      case Verb::kNorm: return norm(id);
      case Verb::kMuonMomentum:
        for (const int32_t f : proof_.plan.matrix_groups[operation.operand].flats)
          check_decided_and_summed(id, units_[proof_.plan.flats[f].unit]);
        return;
      case Verb::kUpdate: return update(id, units_[operation.operand]);
      case Verb::kAllGatherParameters: return all_gather_parameters(id, units_[operation.operand]);
      default: return;  // other verbs do not process gradients
    }
  }

  bool updates() const { return !proof_.plan.policy.evaluation && !proof_.plan.policy.replay; }
  int32_t reduces_wanted() const { return schedule_.accumulate_into_shard ? schedule_.micro_batch_count : 1; }

  /// A reproducible step sums each micro-batch over all ranks before it adds the micro-batches.
  bool sums_micro_batches_over_replicas() const {
    return proof_.plan.policy.reproducible && schedule_.accumulate_into_shard;
  }
  int32_t exchanges_wanted() const {
    if (proof_.plan.policy.replica_count == 1) return 0;
    return sums_micro_batches_over_replicas() ? reduces_wanted() : 1;
  }

  /// Returns the micro-batch whose gradient a backward or reduce processes, or 0 if one reduce sums all micro-batches.
  int32_t sum_of(const Operation& operation) const {
    return schedule_.accumulate_into_shard ? operation.micro_batch : 0;
  }

  /// Processes a backward operation. Reports gradients of several micro-batches that exist at the same time without
  /// separate buffers.
  void backward(OperationId id, UnitId unit) {
    auto& backwards = units_[unit].backwards;
    Backwards& own = backwards[sum_of(schedule_.operations[id])];
    ++own.count;
    own.last = id;
    if (backwards.size() == 1 || !proof_.accesses.trains(unit)) return;
    for (int32_t buffer = 0; buffer < common_gradients_[unit]; ++buffer)
      add(DefectKind::kGradient, id,
          fmt::format("{} adds to the gradients of another micro-batch, which are not reduced yet", describe(id)));
  }

  /// Reports if the gradients that the operation adds are not complete.
  void check_complete(OperationId id, const Operation& operation) {
    const int32_t batches = schedule_.accumulate_into_shard ? 1 : schedule_.micro_batch_count;
    const Backwards own = units_[operation.operand].backwards[sum_of(operation)];
    if (own.count != use_count_[operation.operand] * batches) {
      add(DefectKind::kGradient, id,
          fmt::format("{} sums the gradients of {} backward operations: expected {}", describe(id), own.count,
                      use_count_[operation.operand] * batches));
    } else if (!ended(own.last, id) || operation.micro_batch != micro_batch_of(own.last)) {
      add(DefectKind::kGradient, id,
          fmt::format("{} does not wait for the last backward whose gradients it sums", describe(id)));
    }
  }

  /// Whether the gradients of the unit are partial on the ranks of a tensor group.
  bool needs_sum_over_tensor(UnitId unit) const {
    return std::ranges::any_of(proof_.plan.flats_of_unit[unit], [&](int32_t f) {
      const FlatSpec& flat = proof_.plan.flats[f];
      return flat.trainable && flat.gradients == TensorGradients::kSum && proof_.plan.policy.tensor > 1;
    });
  }

  void sum_over_tensor(OperationId id, const Operation& operation) {
    GradientProgress& unit = units_[operation.operand];
    check_complete(id, operation);
    if (unit.tensor_sum != kNone || !needs_sum_over_tensor(operation.operand))
      add(DefectKind::kGradient, id,
          fmt::format("{} adds gradients that need no sum over the tensor group", describe(id)));
    unit.tensor_sum = id;
  }

  void reduce(OperationId id, const Operation& operation) {
    GradientProgress& unit = units_[operation.operand];
    check_complete(id, operation);
    if (needs_sum_over_tensor(operation.operand)) {
      if (!ended(unit.tensor_sum, id) || micro_batch_of(unit.tensor_sum) != operation.micro_batch)
        add(DefectKind::kGradient, id, fmt::format("{} does not wait for the sum over the tensor group", describe(id)));
      unit.tensor_sum = kNone;
    }
    if (norm_ != kNone) add(DefectKind::kGradient, id, fmt::format("{} comes after the norm", describe(id)));
    if (unit.last_reduce != kNone && micro_batch_of(unit.last_reduce) > operation.micro_batch)
      add(DefectKind::kGradient, id, fmt::format("{} comes after the reduce of a later micro-batch", describe(id)));
    unit.backwards.erase(sum_of(operation));
    unit.last_reduce = id;
    ++unit.reduce_count;
  }
  void replica_all_reduce(OperationId id, GradientProgress& unit) {
    const int32_t reduces = sums_micro_batches_over_replicas() ? unit.exchange_count + 1 : reduces_wanted();
    if (unit.reduce_count != reduces || !ended(unit.last_reduce, id) ||
        micro_batch_of(id) != micro_batch_of(unit.last_reduce))
      add(DefectKind::kGradient, id,
          fmt::format("{} sums a gradient over replicas before the gradient is reduced", describe(id)));
    if (norm_ != kNone) add(DefectKind::kGradient, id, fmt::format("{} comes after the norm", describe(id)));
    unit.last_reduce = id;
    ++unit.exchange_count;
  }
  void all_gather_gradients(OperationId id, GradientProgress& unit) {
    if (unit.reduce_count != reduces_wanted() || unit.exchange_count != exchanges_wanted()) {
      add(DefectKind::kGradient, id, fmt::format("{} gathers a gradient that is not reduced yet", describe(id)));
    }
    ++unit.spread_count;
  }
  void norm(OperationId id) {
    norm_ = id;
    ++norm_count_;
    if (proof_.plan.policy.update_in_backward) return;  // updates do not wait for the norm
    const HappensBefore::Clock& start = proof_.order.at_start(proof_.order.moment(1, id));
    for (OperationId other = 0; other < static_cast<OperationId>(schedule_.operations.size()); ++other) {
      const Verb verb = schedule_.operations[other].verb;
      if (verb != Verb::kUpdate && !belongs_to_matrix_group(verb)) continue;
      if (proof_.order.ended_here(proof_.order.moment(0, other), start)) continue;
      add(DefectKind::kUpdate, id,
          fmt::format("{} overwrites the inputs of updates, such as the clipping factor, while {} of the previous step "
                      "may still read them",
                      describe(id), describe(other)));
    }
  }
  void update(OperationId id, GradientProgress& unit) {
    check_decided_and_summed(id, unit);
    ++unit.update_count;
  }
  void check_decided_and_summed(OperationId id, const GradientProgress& unit) {
    const bool decided = proof_.plan.policy.update_in_backward || (norm_ != kNone && ended(norm_, id));
    const bool summed = unit.reduce_count == reduces_wanted() && unit.exchange_count == exchanges_wanted() &&
                        (schedule_.zero_stage > 0 || unit.spread_count == 1);
    if (!decided) add(DefectKind::kUpdate, id, fmt::format("{} does not wait for the norm", describe(id)));
    if (!summed || !ended(unit.last_reduce, id))
      add(DefectKind::kUpdate, id, fmt::format("{} applies a gradient that is not complete", describe(id)));
  }
  void all_gather_parameters(OperationId id, GradientProgress& unit) {
    if (unit.update_count != 1)
      add(DefectKind::kUpdate, id, fmt::format("{} comes before the update of its unit", describe(id)));
    ++unit.publish_count;
  }

  void finish(UnitId id) {
    const GradientProgress& unit = units_[id];
    const bool trains = proof_.accesses.trains(id) && proof_.plan.unit_is_here[id] && updates();
    const int stage = schedule_.zero_stage;
    const std::string& name = proof_.plan.model.units[id].name;
    const int32_t reduces = trains ? reduces_wanted() : 0, spreads = trains && stage == 0 ? 1 : 0;
    const int32_t updates = trains ? 1 : 0, publishes = trains && (stage == 1 || stage == 2) ? 1 : 0;
    if (unit.tensor_sum != kNone)
      add(DefectKind::kGradient, unit.tensor_sum,
          fmt::format("{} is not followed by a reduce of its unit", describe(unit.tensor_sum)));
    if (unit.exchange_count != (trains ? exchanges_wanted() : 0)) {
      add(DefectKind::kGradient, kNone,
          fmt::format("the gradient of {} is summed over replicas {} times", name, unit.exchange_count));
    }
    if (unit.reduce_count != reduces || unit.spread_count != spreads) {
      add(DefectKind::kGradient, kNone,
          fmt::format("the gradient of {} is reduced {} times and gathered {} times: expected {} and {}", name,
                      unit.reduce_count, unit.spread_count, reduces, spreads));
    }
    if (unit.update_count != updates || unit.publish_count != publishes) {
      add(DefectKind::kUpdate, kNone,
          fmt::format("unit {} is updated {} times and published {} times: expected {} and {}", name, unit.update_count,
                      unit.publish_count, updates, publishes));
    }
  }

  int32_t micro_batch_of(OperationId id) const { return schedule_.operations[id].micro_batch; }
  bool ended(OperationId earlier, OperationId id) const {
    if (earlier == kNone) return false;
    const Moment now = proof_.order.moment(1, id);
    return proof_.order.ended_here(proof_.order.moment(1, earlier), proof_.order.at_start(now));
  }
  std::string describe(OperationId id) const { return proof_.defects.describe(id); }
  void add(DefectKind kind, OperationId id, std::string sentence) {
    std::vector<OperationId> operations;
    if (id != kNone) operations.push_back(id);
    proof_.defects.add(kind, std::move(operations), std::move(sentence));
  }

  const Proof& proof_;
  const Schedule& schedule_;
  std::vector<int32_t> use_count_;
  /// Units whose shared gradient buffers begin or end with each operation.
  std::vector<std::vector<UnitId>> begins_, ends_;
  /// For each unit, the number of gradient buffers that micro-batches share and that exist during the current
  /// operation.
  std::vector<int32_t> common_gradients_;
  std::vector<GradientProgress> units_;
  OperationId norm_ = kNone;
  int32_t norm_count_ = 0;
};

}  // namespace

void check_uses(const Proof& proof) {
  check_model_code(proof);
  if (proof.plan.schedule.zero_stage == 3) GatherChecker(proof).walk();
}

void check_gradients(const Proof& proof) { GradientChecker(proof).walk(); }

}  // namespace aliquot
