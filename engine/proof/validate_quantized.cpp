#include <fmt/format.h>

#include "engine/proof/validate_parts.h"

namespace aliquot {

/// Checks the order of verbs only. check_races() checks that the operations wait for one another.
void check_quantized(const Proof& proof) {
  enum class State { kOld, kRefreshed, kGathered };
  std::vector<State> units(proof.plan.model.units.size(), State::kOld);
  const auto& operations = proof.plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Operation& operation = operations[id];
    if (operation.verb != Verb::kGatherQuantizedShards && operation.verb != Verb::kGather) continue;
    State& unit = units[operation.operand];
    const auto add = [&](std::string_view what) {
      proof.defects.add(DefectKind::kGathered, {id}, fmt::format("{} {}", proof.defects.describe(id), what));
    };
    if (operation.verb == Verb::kGatherQuantizedShards) {
      if (!proof.plan.policy.quantize_weights) add("encodes shards, but Policy::quantize_weights is false");
      if (unit != State::kOld) add("encodes shards that were already encoded or gathered in this step");
      unit = State::kRefreshed;
    } else if (proof.plan.policy.quantize_weights) {
      if (unit == State::kOld) add("decodes shards that were not encoded in this step");
      unit = State::kGathered;
    }
  }
}

}  // namespace aliquot
