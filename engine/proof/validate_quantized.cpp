#include <fmt/format.h>

#include "engine/proof/validate_parts.h"

namespace aliquot {

/// That it reads what the update before it wrote, and is read when it has ended, the races tell.
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
      if (!proof.plan.policy.quantize_weights) add("encodes what nobody decodes");
      if (unit != State::kOld) add("encodes what this step has encoded, or gathered, before");
      unit = State::kRefreshed;
    } else if (proof.plan.policy.quantize_weights) {
      if (unit == State::kOld) add("decodes what was encoded before the last update");
      unit = State::kGathered;
    }
  }
}

}  // namespace aliquot
