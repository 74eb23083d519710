#include "engine/run/memory/step_memory.h"

#include <fmt/format.h>

namespace aliquot {
namespace {

constexpr bool kChecksAccesses = ALIQUOT_CHECKS_ACCESSES;  // defined in CMakeLists.txt

}  // namespace

StepMemory::StepMemory(const Parts& parts, bool books_persistent)
    : plan_(parts.plan),
      arena_(parts.arena),
      offload_stores_(parts.offload_stores),
      rank_(parts.rank),
      ledger_(parts.ledger),
      in_use_(plan_),
      entries_(plan_.schedule.buffers.size(), -1) {
  if (kChecksAccesses) check_ = std::make_unique<AccessCheck>(plan_);
  for (const PlannedBuffer& buffer : plan_.schedule.buffers) {
    owners_.push_back(fmt::format("{} of {}", name(buffer.role), owner(plan_, buffer)));
  }
  for (BufferId b = 0; b < static_cast<BufferId>(plan_.schedule.buffers.size()); ++b) {
    if (!planned(b).always) continue;
    in_use_.at(planned(b)) = b;
    if (books_persistent) acquire(b);
  }
}

StepMemory::~StepMemory() {
  for (const Ledger::EntryId entry : entries_) {
    if (entry >= 0) ledger_.release(entry);
  }
}

void StepMemory::acquire(BufferId buffer) {
  in_use_.at(planned(buffer)) = buffer;
  if (!planned(buffer).booked) return;
  entries_[buffer] = ledger_.acquire(planned(buffer).category, planned(buffer).size_bytes, owners_[buffer]);
}

void StepMemory::release(BufferId buffer) {
  BufferId& current = in_use_.at(planned(buffer));
  if (current == buffer) current = kNoBuffer;  // otherwise the buffer of the next micro-batch is current already
  if (entries_[buffer] >= 0) ledger_.release(entries_[buffer]);
  entries_[buffer] = -1;
}

BufferId StepMemory::current(Role role, int32_t flat) const { return in_use_.find(role, flat, micro_batch_); }

void StepMemory::begin_operation(OperationId operation) {
  micro_batch_ = plan_.schedule.operations[operation].micro_batch;
  if constexpr (kChecksAccesses) check_->begin(operation);
}

void StepMemory::end_operation() const {
  if constexpr (kChecksAccesses) check_->end();
}

void StepMemory::skip_operation() const {
  if constexpr (kChecksAccesses) check_->skip();
}

void StepMemory::declare_access([[maybe_unused]] Role role, [[maybe_unused]] int32_t flat,
                                [[maybe_unused]] AccessMode how) const {
  if constexpr (kChecksAccesses) {
    if (current(role, flat) != kNoBuffer) check_->declare_access(role, flat, how);
  }
}

std::byte* StepMemory::address(Role role, int32_t flat, AccessMode how) const {
  declare_access(role, flat, how);
  return peek(role, flat);
}

std::byte* StepMemory::peek(BufferId buffer) const {
  if (buffer == kNoBuffer) return nullptr;
  const PlannedBuffer& plan = planned(buffer);
  if (plan.space == Space::kSharedRange)
    return arena_.shared().writable() + plan.offset_bytes + rank_ * plan.size_bytes;
  if (const OffloadStore* home = is_offloaded_role(plan.role) ? offload_stores_.of(plan.space) : nullptr)
    return home->base() + plan.offset_bytes;
  return arena_.local() + plan.offset_bytes;
}

std::byte* StepMemory::address_between_steps(Role role, int32_t flat) const {
  const auto home = offloaded_role_of(role);
  const bool offloaded = home && current(*home, flat) != kNoBuffer;
  return peek(offloaded ? *home : role, flat);
}

SymmetricRange StepMemory::range(Role role, int32_t flat, AccessMode how, GroupId group) const {
  declare_access(role, flat, how);
  const PlannedBuffer& plan = planned(current(role, flat));
  return {&arena_.buffer(group), plan.offset_bytes};
}

std::byte* StepMemory::own_shard(int32_t flat) const {
  std::byte* parameters = peek(Role::kParameters, flat);
  if (plan_.schedule.zero_stage == 3) return parameters;
  return parameters + rank_ * plan_.flats[flat].layout.shard_count() * element_bytes(plan_.policy.precision.compute);
}

std::byte* StepMemory::full_parameters(int32_t flat) const {
  if (plan_.schedule.zero_stage < 3) return peek(Role::kParameters, flat);
  if (!plan_.schedule.view) return peek(Role::kGathered, flat);
  const int64_t offset = planned(current(Role::kParameters, flat)).offset_bytes;
  // The mapping may be read-only, but the model's pointers are not const.
  return const_cast<std::byte*>(arena_.shared().readable()) + offset;
}

}  // namespace aliquot
