#include "engine/plan/timeline.h"

#include <algorithm>

#include "engine/plan/happens_before.h"

namespace aliquot {
namespace {

/// Seconds of `span` that overlap with `busy`, whose spans are in order and disjoint.
double overlap(const TimeSpan& span, const std::vector<TimeSpan>& busy) {
  double seconds = 0;
  auto it = std::lower_bound(busy.begin(), busy.end(), span.start_seconds,
                             [](const TimeSpan& other, double at) { return other.end_seconds <= at; });
  for (; it != busy.end() && it->start_seconds < span.end_seconds; ++it) {
    seconds += std::min(span.end_seconds, it->end_seconds) - std::max(span.start_seconds, it->start_seconds);
  }
  return seconds;
}

}  // namespace

void add_up(const Plan& plan, const std::vector<TimeSpan>& busy, Timeline& timeline) {
  for (std::size_t id = 0; id < timeline.operations.size(); ++id) {
    const TimeSpan& span = timeline.operations[id];
    const Operation& operation = plan.schedule.operations[id];
    if (operation.lane == Lane::kCompute) timeline.compute_seconds += span.seconds();
    if (!is_collective(plan, operation) && !is_transfer(operation.verb)) continue;
    timeline.communication_seconds += span.seconds();
    timeline.hidden_seconds += overlap(span, busy);
  }
}

}  // namespace aliquot
