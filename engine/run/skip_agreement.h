#pragma once
// Agreement of the ranks of a tensor group on skipped uses.

#include <array>
#include <vector>

#include "engine/plan/schedule.h"
#include "engine/run/mesh_groups.h"

namespace aliquot {

/// Compares which backwards the ranks of a tensor group skip. If only some ranks skip the backward of a parameter whose
/// full gradient each rank computes, the copies of the parameter would differ after the step. Used from the rank's own
/// thread. The plan and the groups must outlive it.
class SkipAgreement {
 public:
  SkipAgreement(const Plan& plan, const MeshGroups& groups) : plan_(plan), groups_(groups) {
    if (plan.policy.tensor > 1) skipped_.reserve(plan.schedule.operations.size());
  }

  void begin_step() { skipped_.clear(); }
  /// Notes that this rank skips the model code of an operation.
  void note(OperationId operation);
  /// Call after the passes of a step, if no rank abandons it. Collective over the tensor group. Throws UsageError on
  /// all ranks of the group if they skip different backwards.
  void check(Stream& lane, Label label);

 private:
  [[noreturn]] void refuse() const;

  const Plan& plan_;
  const MeshGroups& groups_;
  std::vector<OperationId> skipped_;     // the noted backwards of this step, in order
  std::array<double, 2> hash_bounds_{};  // the smallest hash of a rank, and the largest, negated
};

}  // namespace aliquot
