#pragma once
// The buffers in use at one point of a schedule.

#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// The buffer in use, or kNoBuffer, for each role and owner, and for each micro-batch if the role has
/// RoleInfo::per_micro_batch. Micro-batches that are never in flight at the same time share an entry.
class BuffersInUse {
 public:
  explicit BuffersInUse(const Plan& plan)
      : owners_(plan.owner_count() + 1),
        in_flight_(static_cast<std::size_t>(plan.schedule.micro_batches_in_flight)),
        buffers_(kRoleCount) {
    for (std::size_t role = 0; role < kRoleCount; ++role)
      buffers_[role].assign(owners_ * (info(static_cast<Role>(role)).per_micro_batch ? in_flight_ + 1 : 1), kNoBuffer);
  }

  /// Returns the entry for the role, the owner and the micro-batch of `buffer`.
  BufferId& at(const PlannedBuffer& buffer) {
    return buffers_[static_cast<std::size_t>(buffer.role)][index(buffer.role, buffer.flat, buffer.micro_batch)];
  }
  /// Returns the buffer that an operation of `micro_batch` accesses: the buffer of that micro-batch, or, if there is
  /// none, the buffer that all micro-batches share.
  BufferId find(Role role, int32_t flat, int32_t micro_batch) const {
    const auto& of_role = buffers_[static_cast<std::size_t>(role)];
    if (!info(role).per_micro_batch || micro_batch < 0) return of_role[index(role, flat, -1)];
    const BufferId own = of_role[index(role, flat, micro_batch)];
    return own != kNoBuffer ? own : of_role[index(role, flat, -1)];
  }

 private:
  /// Returns the index of an entry for `role`. Entries form rows, one for each micro-batch in flight, and a last row
  /// for buffers that all micro-batches share. A row has one entry per owner, and one more for buffers without an
  /// owner.
  std::size_t index(Role role, int32_t flat, int32_t micro_batch) const {
    const std::size_t owner = flat < 0 ? owners_ - 1 : static_cast<std::size_t>(flat);
    if (!info(role).per_micro_batch) return owner;
    const std::size_t row = micro_batch < 0 ? in_flight_ : static_cast<std::size_t>(micro_batch) % in_flight_;
    return row * owners_ + owner;
  }

  std::size_t owners_, in_flight_;
  std::vector<std::vector<BufferId>> buffers_;
};

}  // namespace aliquot
