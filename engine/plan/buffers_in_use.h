#pragma once
// The buffers in use at one point of a schedule.

#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// By role, owner and, for activations, micro-batch: the buffer in use, or kNoBuffer. Micro-batches that are never in
/// flight at the same time share an entry.
class BuffersInUse {
 public:
  explicit BuffersInUse(const Plan& plan)
      : owners_(plan.owner_count() + 1),
        in_flight_(static_cast<std::size_t>(plan.schedule.micro_batches_in_flight)),
        buffers_(kRoleCount) {
    for (std::size_t role = 0; role < kRoleCount; ++role)
      buffers_[role].assign(owners_ * (info(static_cast<Role>(role)).per_micro_batch ? in_flight_ : 1), kNoBuffer);
  }

  BufferId& at(Role role, int32_t flat, int32_t micro_batch) {
    return buffers_[static_cast<std::size_t>(role)][index(role, flat, micro_batch)];
  }
  BufferId at(Role role, int32_t flat, int32_t micro_batch) const {
    return buffers_[static_cast<std::size_t>(role)][index(role, flat, micro_batch)];
  }
  BufferId& at(const PlannedBuffer& buffer) { return at(buffer.role, buffer.flat, buffer.micro_batch); }

 private:
  /// The last entry is for buffers without owner.
  std::size_t index(Role role, int32_t flat, int32_t micro_batch) const {
    const std::size_t owner = flat < 0 ? owners_ - 1 : static_cast<std::size_t>(flat);
    if (!info(role).per_micro_batch) return owner;
    return static_cast<std::size_t>(micro_batch) % in_flight_ * owners_ + owner;
  }

  std::size_t owners_, in_flight_;
  std::vector<std::vector<BufferId>> buffers_;
};

}  // namespace aliquot
