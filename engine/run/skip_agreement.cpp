#include "engine/run/skip_agreement.h"

#include <algorithm>
#include <fmt/format.h>

#include "kernels/system/error.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {
namespace {

/// Returns a hash that a double represents exactly.
double hash_of(const std::vector<OperationId>& operations) {
  uint64_t hash = operations.size();
  for (const OperationId id : operations) hash = (hash ^ static_cast<uint64_t>(id)) * 0x9E3779B97F4A7C15u;
  return static_cast<double>(hash >> 12);
}

}  // namespace

void SkipAgreement::note(OperationId operation) {
  const Operation& what = plan_.schedule.operations[operation];
  if (plan_.policy.tensor == 1 || !computes_weight_gradients(what.verb)) return;
  const bool has_copies = std::ranges::any_of(plan_.model.uses[what.operand], [&](UnitId unit) {
    return std::ranges::any_of(plan_.flats_of_unit[unit], [&](int32_t f) {
      return plan_.flats[f].trainable && plan_.flats[f].gradients == TensorGradients::kSame;
    });
  });
  if (has_copies) skipped_.push_back(operation);
}

void SkipAgreement::check(Stream& lane, Label label) {
  if (plan_.policy.tensor == 1) return;
  const double own = hash_of(skipped_);
  hash_bounds_ = {own, -own};
  groups_.at(GroupId::kTensor).all_reduce(lane, hash_bounds_, Reduction::kMin, label);
  lane.synchronize();
  if (hash_bounds_[0] != -hash_bounds_[1]) refuse();
}

/// Throws UsageError, which names a backward that one rank skips and another does not.
void SkipAgreement::refuse() const {
  const std::string own = to_bytes(std::span<const OperationId>(skipped_));
  const std::vector<int> ranks = groups_.mesh().members(GroupId::kTensor, groups_.world().rank());
  std::vector<std::vector<OperationId>> skipped;
  for (const std::string& bytes : groups_.at(GroupId::kTensor).gather_objects(own))
    skipped.push_back(from_bytes<OperationId>(bytes));
  for (std::size_t r = 0; r < skipped.size(); ++r) {
    for (const OperationId id : skipped[r]) {
      const auto runs = std::ranges::find_if(skipped, [&](const auto& of) { return std::ranges::count(of, id) == 0; });
      if (runs == skipped.end()) continue;
      throw UsageError(
          fmt::format("rank {} skipped {} of micro-batch {}, but rank {} did not: either all ranks of a tensor group "
                      "or none must skip a backward that computes full gradients",
                      ranks[r], title(plan_, id), plan_.schedule.operations[id].micro_batch,
                      ranks[static_cast<std::size_t>(runs - skipped.begin())]));
    }
  }
  throw FaultError("the ranks of a tensor group skipped the same backwards in different orders");
}

}  // namespace aliquot
