#include "engine/plan/happens_before.h"

#include <algorithm>

namespace aliquot {
namespace {

using Clock = HappensBefore::Clock;

Clock nothing() {
  Clock clock;
  clock.here.fill(kNever);
  clock.elsewhere.fill(kNever);
  return clock;
}

/// The same clock as seen by another rank, for which this rank is "elsewhere".
Clock mirrored(const Clock& clock) { return {clock.elsewhere, clock.here}; }

void merge(Clock& into, const Clock& from) {
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    into.here[lane] = std::max(into.here[lane], from.here[lane]);
    into.elsewhere[lane] = std::max(into.elsewhere[lane], from.elsewhere[lane]);
  }
}

}  // namespace

bool is_collective(const Plan& plan, const Operation& operation) {
  if (info(operation.verb).group != GroupId::kShard) return false;
  const bool gathers = operation.verb == Verb::kGather, refreshes = operation.verb == Verb::kGatherQuantizedShards;
  if (!gathers && !refreshes) return true;
  if (plan.model.units[operation.operand].parameters.empty()) return false;  // nothing to gather
  if (refreshes) return plan.topology.node_count() > 1;
  return !plan.schedule.view && (!plan.policy.quantize_weights || has_several_ranks_per_node(plan));
}

bool communicates(const Plan& plan, const Operation& operation) {
  return info(operation.verb).group == GroupId::kReplica || is_collective(plan, operation);
}

HappensBefore::HappensBefore(const Plan& plan) : count_(static_cast<int32_t>(plan.schedule.operations.size())) {
  const auto& operations = plan.schedule.operations;
  for (const Operation& operation : operations) lane_.push_back(operation.lane);
  start_.resize(static_cast<std::size_t>(count_) * 2);
  all_arrived_.resize(start_.size());
  const bool alone = plan.topology.rank_count() == 1;
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
      if (wait.on_all && !alone) merge(start, mirrored(end));
    }
    all_arrived_[now] = start;
    if (is_collective(plan, what) && !alone) merge(all_arrived_[now], mirrored(start));
    lane_end[lane(now)] = at_end(now);
  }
}

Clock HappensBefore::at_end(Moment moment) const {
  Clock clock = all_arrived_[moment];
  clock.here[lane(moment)] = moment;
  return clock;
}

}  // namespace aliquot
