// Checks of the collectives inside uses. Does not use next_collective() and UseCollective::size_bytes(), from which the
// schedule writer gets order and sizes, so that an error in them is found.
#include <fmt/format.h>

#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

/// Whether model code with this verb runs the collective.
bool belongs_to(const UseCollective& what, Verb verb) {
  const bool repeats = what.in_recompute && what.buffer != UseBuffer::kOutput;
  if (what.part == UsePart::kForward) return verb == Verb::kForward || (verb == Verb::kRecompute && repeats);
  if (what.part == UsePart::kBackward) return verb == Verb::kBackward || verb == Verb::kBackwardInput;
  return verb == Verb::kBackward || verb == Verb::kBackwardWeights;
}

int64_t declared_bytes(const ActivationSpec& spec, const UseActivations& use, UseBuffer buffer) {
  if (buffer == UseBuffer::kOutput) return use.output_bytes;
  if (buffer == UseBuffer::kSaved) return use.kept_bytes;
  return buffer == UseBuffer::kScratch ? use.scratch_bytes : spec.backward_bytes;
}

class CollectiveChecker {
 public:
  explicit CollectiveChecker(const Proof& proof)
      : proof_(proof), spec_(proof.plan.model.activations), operations_(proof.plan.schedule.operations) {}

  void walk() {
    const auto count = static_cast<OperationId>(operations_.size());
    OperationId next = 0;
    while (next < count) {
      const OperationId id = next++;
      if (is_model_code(operations_[id].verb)) next = check_use(id);
      if (operations_[id].verb == Verb::kUseCollective) add(id, "does not follow the model code of its use");
    }
  }

 private:
  /// Checks the collectives after the model code `code`. Returns the first operation after them.
  OperationId check_use(OperationId code) {
    OperationId next = code + 1;
    if (proof_.plan.policy.tensor == 1 || spec_.uses.empty()) return next;
    const Operation& use = operations_[code];
    const auto& declared = spec_.uses[use.operand].collectives;
    for (std::size_t i = 0; i < declared.size(); ++i) {
      if (!belongs_to(declared[i], use.verb)) continue;
      const bool exists =
          next < static_cast<OperationId>(operations_.size()) && operations_[next].verb == Verb::kUseCollective &&
          operations_[next].operand == use.operand && operations_[next].micro_batch == use.micro_batch &&
          operations_[next].collective == static_cast<int32_t>(i) && operations_[next].lane == Lane::kCompute;
      if (!exists) {
        add(code, fmt::format("is not followed by its collective \"{}\", on the compute lane", declared[i].name));
        return next;
      }
      check_size(next++, declared[i]);
    }
    return next;
  }

  /// Each rank of the tensor group owns an equal number of rows, so the data may be followed by unused rows.
  void check_size(OperationId id, const UseCollective& what) {
    const int64_t ranks = proof_.plan.policy.tensor;
    int64_t rows = what.rows;
    while (rows % ranks != 0) ++rows;
    const int64_t end = what.offset_bytes + rows * what.row_elements * element_bytes(what.dtype);
    if (what.offset_bytes >= 0 && end <= declared_bytes(spec_, spec_.uses[operations_[id].operand], what.buffer))
      return;
    add(id, fmt::format("needs {} bytes in a buffer of its use, which is smaller", end));
  }

  void add(OperationId id, std::string_view what) {
    proof_.defects.add(DefectKind::kUse, {id}, fmt::format("{} {}", proof_.defects.describe(id), what));
  }

  const Proof& proof_;
  const ActivationSpec& spec_;
  const std::vector<Operation>& operations_;
};

}  // namespace

void check_collectives(const Proof& proof) { CollectiveChecker(proof).walk(); }

}  // namespace aliquot
