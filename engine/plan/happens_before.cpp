#include "engine/plan/happens_before.h"

#include <algorithm>

namespace aliquot {
namespace {

using Clock = HappensBefore::Clock;
using LaneMoments = HappensBefore::LaneMoments;

Clock nothing() {
  Clock clock;
  clock.here.fill(kNever);
  for (LaneMoments& group : clock.elsewhere) group.fill(kNever);
  return clock;
}

void merge(LaneMoments& into, const LaneMoments& from) {
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) into[lane] = std::max(into[lane], from[lane]);
}

void merge(Clock& into, const Clock& from) {
  merge(into.here, from.here);
  for (std::size_t group = 0; group < kPeerGroupCount; ++group) merge(into.elsewhere[group], from.elsewhere[group]);
}

/// Merges the clocks of the other ranks of `group` into this rank's clock `into`. All ranks run the same schedule, so
/// their clocks have the same values as this rank's clock `from`. But the `here` of another rank belongs to this rank's
/// `elsewhere`. Its `elsewhere` includes this rank, so it belongs to this rank's `here`. Other groups are not merged.
void merge_peers(Clock& into, const Clock& from, GroupId group) {
  const std::size_t index = peer_index(group);
  merge(into.here, from.elsewhere[index]);
  merge(into.elsewhere[index], from.here);
}

}  // namespace

bool is_collective(const Plan& plan, const Operation& operation) {
  if (!is_peer_group(operation.group)) return false;
  const bool gathers = operation.verb == Verb::kGather, refreshes = operation.verb == Verb::kGatherQuantizedShards;
  if (!gathers && !refreshes) return true;
  if (plan.model.units[operation.operand].parameters.empty()) return false;  // nothing to gather
  if (refreshes) return plan.topology.node_count() > 1;
  return !plan.schedule.view && (!plan.policy.quantize_weights || has_several_ranks_per_node(plan));
}

HappensBefore::HappensBefore(const Plan& plan) : count_(static_cast<int32_t>(plan.schedule.operations.size())) {
  const Mesh mesh = plan.mesh();
  const auto& operations = plan.schedule.operations;
  const auto has_peers = [&](GroupId group) { return is_peer_group(group) && mesh.size(group) > 1; };
  for (const Operation& operation : operations) {
    lane_.push_back(operation.lane);
    const bool ends_together = info(operation.verb).ends_with_barrier && has_peers(operation.group);
    finishing_group_.push_back(ends_together ? operation.group : GroupId::kRank);
  }
  start_.resize(static_cast<std::size_t>(count_) * 2);
  all_arrived_.resize(start_.size());
  std::array<Clock, kLaneCount> lane_end;
  lane_end.fill(nothing());
  for (Moment now = 0; now < count_ * 2; ++now) {
    const Operation& what = operations[operation(now)];
    Clock& start = start_[now] = lane_end[lane(now)];
    for (const Wait& wait : what.after) {
      const Moment earlier = now - operation(now) + wait.operation - (wait.of_previous_step ? count_ : 0);
      if (earlier < 0) continue;
      const Clock end = at_end(earlier);
      merge(start, end);
      if (has_peers(wait.of)) merge_peers(start, end, wait.of);
    }
    all_arrived_[now] = start;
    if (is_collective(plan, what) && has_peers(what.group)) merge_peers(all_arrived_[now], start, what.group);
    lane_end[lane(now)] = at_end(now);
  }
}

Clock HappensBefore::at_end(Moment moment) const {
  Clock clock = all_arrived_[moment];
  clock.here[lane(moment)] = moment;
  const GroupId group = finishing_group_[operation(moment)];
  if (group != GroupId::kRank) clock.elsewhere[peer_index(group)][lane(moment)] = moment;
  return clock;
}

}  // namespace aliquot
