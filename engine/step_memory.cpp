#include "engine/step_memory.h"

#include <fmt/format.h>

namespace aliquot {
namespace {
constexpr std::size_t kRoleCount = 8;
}

StepMemory::StepMemory(const Plan& plan, Communicator& communicator, Ledger& ledger)
    : plan_(plan),
      rank_(communicator.rank()),
      ledger_(ledger),
      arena_(communicator.allocate(plan.schedule.arena_bytes, Category::kArena, "arena")),
      current_(kRoleCount, std::vector<BufferId>(plan.flats.size() + 1, kNoBuffer)),
      entries_(plan.schedule.buffers.size(), -1) {
  if (plan.schedule.view) {
    const int64_t bytes = plan.schedule.shared_range_bytes;
    shared_ =
        communicator.allocate_shared(bytes, bytes / communicator.rank_count(), Category::kArena, "parameter shards");
  }
  for (const PlannedBuffer& buffer : plan.schedule.buffers) {
    const std::string_view unit =
        buffer.flat < 0 ? "all units" : std::string_view(plan.model.units[plan.flats[buffer.flat].unit].name);
    owners_.push_back(fmt::format("{} of {}", name(buffer.role), unit));
  }
  for (BufferId b = 0; b < static_cast<BufferId>(plan.schedule.buffers.size()); ++b) {
    if (planned(b).always) acquire(b);
  }
}

void StepMemory::acquire(BufferId buffer) {
  const PlannedBuffer& plan = planned(buffer);
  current_[static_cast<std::size_t>(plan.role)][plan.flat < 0 ? current_[0].size() - 1 : plan.flat] = buffer;
  entries_[buffer] = ledger_.acquire(plan.category, plan.size_bytes, owners_[buffer]);
}

void StepMemory::release(BufferId buffer) {
  const PlannedBuffer& plan = planned(buffer);
  auto& current = current_[static_cast<std::size_t>(plan.role)][plan.flat < 0 ? current_[0].size() - 1 : plan.flat];
  if (current == buffer) current = kNoBuffer;  // the next micro-batch may have taken another place already
  ledger_.release(entries_[buffer]);
}

BufferId StepMemory::current(Role role, int32_t flat) const {
  return current_[static_cast<std::size_t>(role)][flat < 0 ? current_[0].size() - 1 : flat];
}

std::byte* StepMemory::address(BufferId buffer) const {
  if (buffer == kNoBuffer) return nullptr;
  const PlannedBuffer& plan = planned(buffer);
  if (plan.in_shared_range) return shared_->writable() + plan.offset_bytes + rank_ * plan.size_bytes;
  return arena_.local() + plan.offset_bytes;
}

SymmetricRange StepMemory::range(Role role, int32_t flat) const {
  return {&arena_, planned(current(role, flat)).offset_bytes};
}

float* StepMemory::own_shard(int32_t flat) const {
  auto* parameters = reinterpret_cast<float*>(address(Role::kParameters, flat));
  const bool standing_whole = plan_.schedule.zero_stage < 3;
  return standing_whole ? parameters + rank_ * plan_.flats[flat].layout.shard_count() : parameters;
}

float* StepMemory::whole(int32_t flat) const {
  if (plan_.schedule.zero_stage < 3) return reinterpret_cast<float*>(address(Role::kParameters, flat));
  if (!plan_.schedule.view) return reinterpret_cast<float*>(address(Role::kGathered, flat));
  const int64_t offset = planned(current(Role::kParameters, flat)).offset_bytes;
  // Read-only where the world can make it so; the model's own pointers are not const.
  return reinterpret_cast<float*>(const_cast<std::byte*>(shared_->readable()) + offset);
}

}  // namespace aliquot
