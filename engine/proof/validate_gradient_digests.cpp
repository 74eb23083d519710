#include <algorithm>
#include <fmt/format.h>

#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

/// What the gradients of a unit consist of at one point of the step.
struct DigestedUnit {
  bool is_expected = false;
  int32_t use_count = 0;
  int32_t backwards = 0;  // of micro-batch 0
  int32_t others = 0;     // of other micro-batches, in the buffer that all micro-batches share
  int32_t digests = 0;
  bool has_own_buffers = false;  // each micro-batch has its own gradients
};

class GradientDigestChecker {
 public:
  explicit GradientDigestChecker(const Proof& proof)
      : proof_(proof), units_(proof.plan.model.units.size()), has_digests_(proof.plan.flats.size(), false) {
    const Plan& plan = proof.plan;
    const bool wanted = plan.policy.replay_every != 0 && !plan.policy.evaluation;
    for (const FlatSpec& flat : plan.flats) {
      if (wanted && flat.trainable && plan.unit_is_here[flat.unit]) units_[flat.unit].is_expected = true;
    }
    for (const PlannedBuffer& buffer : plan.schedule.buffers) {
      if (buffer.role == Role::kGradients && buffer.micro_batch == 0)
        units_[plan.flats[buffer.flat].unit].has_own_buffers = true;
    }
    for (const VirtualStage& run : plan.stage.runs) {
      for (int32_t use = run.first_use; use < run.end_use; ++use) {
        for (const UnitId unit : plan.model.uses[use]) ++units_[unit].use_count;
      }
    }
  }

  void walk() {
    const auto& operations = proof_.plan.schedule.operations;
    for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) visit(id, operations[id]);
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const int32_t expected = units_[unit].is_expected ? 1 : 0;
      if (units_[unit].digests != expected)
        add({}, fmt::format("the digests of the gradients of unit {} are computed {} times: expected {}",
                            proof_.plan.model.units[unit].name, units_[unit].digests, expected));
    }
    check_buffers();
    check_sum_digests(Role::kSumDigests);
    check_sum_digests(Role::kReplicaSumDigests);
  }

 private:
  void visit(OperationId id, const Operation& operation) {
    const int32_t m = operation.micro_batch;
    if (computes_weight_gradients(operation.verb)) {
      for (const UnitId unit : proof_.plan.model.uses[operation.operand]) backward(id, units_[unit], m);
    } else if (operation.verb == Verb::kDigestGradients) {
      digest(id, units_[operation.operand], operation.operand, m);
    } else if (operation.verb == Verb::kReduce || operation.verb == Verb::kSumOverTensor) {
      if (units_[operation.operand].is_expected && units_[operation.operand].digests == 0)
        add({id}, fmt::format("{} changes gradients before their digests are computed", describe(id)));
    }
  }

  void backward(OperationId id, DigestedUnit& state, int32_t micro_batch) {
    if (micro_batch == 0) {
      ++state.backwards;
      if (state.digests > 0)
        add({id}, fmt::format("{} computes gradients of micro-batch 0 after their digests", describe(id)));
    } else if (!state.has_own_buffers) {
      ++state.others;
    }
  }

  void digest(OperationId id, DigestedUnit& state, UnitId unit, int32_t micro_batch) {
    if (micro_batch != 0) add({id}, fmt::format("{} is not of micro-batch 0", describe(id)));
    if (state.backwards != state.use_count || state.others > 0)
      add({id}, fmt::format("{} must follow {} backwards of micro-batch 0 and none of other micro-batches, but follows "
                            "{} and {}",
                            describe(id), state.use_count, state.backwards, state.others));
    if (!proof_.plan.unit_is_here[unit])
      add({id}, fmt::format("{} digests a unit that this pipeline stage does not use", describe(id)));
    ++state.digests;
  }

  /// Whether ranks repeat the sums whose digests have this role: see RepeatedSums. Groups of one rank and quantized
  /// sums have no repetitions.
  bool repeats_sums(Role digests) const {
    const Plan& plan = proof_.plan;
    if (plan.policy.replay_every == 0) return false;
    if (digests == Role::kReplicaSumDigests)
      return plan.policy.replica_count > 1 && !(plan.policy.quantize_gradients && !plan.data_topology.one_node());
    const bool quantizes = plan.policy.quantize_gradients && plan.policy.replica_count == 1;
    return plan.topology.rank_count() > 1 && !(quantizes && !plan.topology.one_node());
  }

  /// Every flat buffer that trains here has digests of its repeated sums.
  void check_sum_digests(Role role) {
    const Plan& plan = proof_.plan;
    const bool wanted = repeats_sums(role);
    std::vector<bool> has_digests(plan.flats.size(), false);
    for (const PlannedBuffer& buffer : plan.schedule.buffers) {
      if (buffer.role != role) continue;
      if (!wanted || !buffer.always)
        add({}, fmt::format("{} is not persistent, or its sums are not repeated", proof_.defects.describe(buffer)));
      has_digests[buffer.flat] = true;
    }
    for (std::size_t f = 0; f < plan.flats.size() && wanted; ++f) {
      const FlatSpec& flat = plan.flats[f];
      if (flat.trainable && plan.unit_is_here[flat.unit] && !has_digests[f])
        add({}, fmt::format("a flat buffer of unit {} has no {}", plan.model.units[flat.unit].name, name(role)));
    }
  }

  void check_buffers() {
    const Plan& plan = proof_.plan;
    for (const PlannedBuffer& buffer : plan.schedule.buffers) {
      if (buffer.role != Role::kGradientDigests) continue;
      if (plan.policy.replay_every == 0 || !buffer.always)
        add({}, fmt::format("{} is not persistent, or Policy::replay_every is 0", proof_.defects.describe(buffer)));
      has_digests_[buffer.flat] = true;
    }
    for (std::size_t f = 0; f < plan.flats.size(); ++f) {
      const FlatSpec& flat = plan.flats[f];
      if (plan.policy.replay_every != 0 && flat.trainable && plan.unit_is_here[flat.unit] && !has_digests_[f])
        add({}, fmt::format("a flat buffer of unit {} has no digests of gradients", plan.model.units[flat.unit].name));
    }
  }

  std::string describe(OperationId id) const { return proof_.defects.describe(id); }
  void add(std::vector<OperationId> operations, std::string sentence) {
    proof_.defects.add(DefectKind::kGradient, std::move(operations), std::move(sentence));
  }

  const Proof& proof_;
  std::vector<DigestedUnit> units_;
  std::vector<bool> has_digests_;  // for each flat buffer
};

}  // namespace

void check_gradient_digests(const Proof& proof) {
  if (proof.plan.policy.replay_every != 0 || std::ranges::any_of(proof.plan.schedule.operations, [](const auto& each) {
        return each.verb == Verb::kDigestGradients;
      }))
    GradientDigestChecker(proof).walk();
}

}  // namespace aliquot
