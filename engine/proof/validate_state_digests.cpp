#include <fmt/format.h>

#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

/// Whether parameters of the flat buffer have digests that no update of this rank compares. Independent of
/// Plan::compares_outside_updates(), which the schedule writer uses.
bool needs_comparison(const Plan& plan, int32_t flat) {
  const FlatSpec& spec = plan.flats[flat];
  if (!plan.policy.check_state || plan.policy.evaluation || plan.policy.replay) return false;
  if (!plan.unit_is_here[spec.unit]) return false;
  if (spec.layout.shard_count() == 0) return false;
  const int stage = plan.schedule.zero_stage;
  return !spec.trainable || (stage > 0 && stage < 3 && plan.topology.node_of_rank.size() > 1);
}

class StateDigestChecker {
 public:
  explicit StateDigestChecker(const Proof& proof)
      : proof_(proof),
        expected_(proof.plan.model.units.size(), 0),
        found_(expected_.size(), 0),
        has_digests_(proof.plan.flats.size(), false) {
    for (int32_t f = 0; f < static_cast<int32_t>(proof.plan.flats.size()); ++f) {
      if (needs_comparison(proof.plan, f)) expected_[proof.plan.flats[f].unit] = 1;
    }
  }

  void walk() {
    const auto& operations = proof_.plan.schedule.operations;
    for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) visit(id, operations[id]);
    for (std::size_t unit = 0; unit < expected_.size(); ++unit) {
      if (found_[unit] != expected_[unit])
        add({}, fmt::format("the digests of unit {} are compared {} times outside of updates: expected {}",
                            proof_.plan.model.units[unit].name, found_[unit], expected_[unit]));
    }
    check_buffers();
  }

 private:
  void visit(OperationId id, const Operation& operation) {
    if (operation.verb == Verb::kCompareState) {
      ++found_[operation.operand];
      return;
    }
    if (operation.verb == Verb::kAllGatherParameters && found_[operation.operand] < expected_[operation.operand])
      add({id}, fmt::format("{} overwrites parameters before their digests are compared", proof_.defects.describe(id)));
    if (!reads_parameters(operation.verb)) return;
    for (const UnitId unit : proof_.plan.model.uses[operation.operand]) {
      if (found_[unit] > 0)
        add({id}, fmt::format("{} reads parameters after their digests are compared", proof_.defects.describe(id)));
    }
  }

  void check_buffers() {
    const Plan& plan = proof_.plan;
    for (const PlannedBuffer& buffer : plan.schedule.buffers) {
      if (buffer.role != Role::kStateDigests) continue;
      if (!plan.policy.check_state || !buffer.always)
        add({}, fmt::format("{} is not persistent, or Policy::check_state is false", proof_.defects.describe(buffer)));
      has_digests_[buffer.flat] = true;
    }
    for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
      const UnitId unit = plan.flats[f].unit;
      if (plan.policy.check_state && plan.unit_is_here[unit] && !has_digests_[f])
        add({}, fmt::format("a flat buffer of unit {} has no digests", plan.model.units[unit].name));
    }
  }

  void add(std::vector<OperationId> operations, std::string sentence) {
    proof_.defects.add(DefectKind::kUpdate, std::move(operations), std::move(sentence));
  }

  const Proof& proof_;
  std::vector<int32_t> expected_, found_;  // for each unit, the number of operations kCompareState
  std::vector<bool> has_digests_;          // for each flat buffer
};

}  // namespace

void check_state_digests(const Proof& proof) { StateDigestChecker(proof).walk(); }

}  // namespace aliquot
