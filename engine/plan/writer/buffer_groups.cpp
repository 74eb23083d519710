#include <array>

#include "engine/plan/accesses.h"
#include "engine/plan/buffers_in_use.h"
#include "engine/plan/writer/writer.h"

namespace aliquot {
namespace {

/// Returns the smallest group that covers both `a` and `b`.
GroupId smallest_cover(GroupId a, GroupId b) {
  constexpr std::array kSmallFirst = {GroupId::kRank,     GroupId::kShard,     GroupId::kReplica,
                                      GroupId::kTensor,   GroupId::kNextStage, GroupId::kPreviousStage,
                                      GroupId::kPipeline, GroupId::kStage,     GroupId::kWorld};
  static_assert(kSmallFirst.size() == kGroupCount);
  for (const GroupId group : kSmallFirst) {
    if (covers(group, a) && covers(group, b)) return group;
  }
  return GroupId::kWorld;
}

}  // namespace

void assign_groups(Plan& plan) {
  Schedule& schedule = plan.schedule;
  std::vector<std::vector<BufferId>> begins(schedule.operations.size()), ends(schedule.operations.size());
  BuffersInUse in_use(plan);
  for (BufferId b = 0; b < static_cast<BufferId>(schedule.buffers.size()); ++b) {
    const PlannedBuffer& buffer = schedule.buffers[b];
    if (buffer.always) in_use.at(buffer) = b;
    if (buffer.always) continue;
    begins[buffer.first].push_back(b);
    ends[buffer.last].push_back(b);
  }
  Accesses accesses(plan);
  const Mesh mesh = plan.mesh();
  for (OperationId id = 0; id < static_cast<OperationId>(schedule.operations.size()); ++id) {
    const Operation& operation = schedule.operations[id];
    for (const BufferId b : begins[id]) in_use.at(schedule.buffers[b]) = b;
    for (const Access& access : accesses.of(id)) {
      const BufferId b = in_use.find(access.role, access.flat, access.micro_batch);
      if (b == kNoBuffer) continue;
      GroupId& group = schedule.buffers[b].group;
      const GroupId ranks = is_transfer(operation.verb) ? operation.group : access.readers;
      if (mesh.size(ranks) > 1) group = smallest_cover(group, ranks);
    }
    for (const BufferId b : ends[id]) {
      BufferId& current = in_use.at(schedule.buffers[b]);  // may already name the buffer of the next micro-batch
      if (current == b) current = kNoBuffer;
    }
  }
}

}  // namespace aliquot
