#include "engine/plan/timeline.h"

#include <algorithm>
#include <utility>

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

/// The time during which at least one of the spans runs.
double union_seconds(std::vector<TimeSpan> spans) {
  std::ranges::sort(spans, {}, &TimeSpan::start_seconds);
  double seconds = 0, end = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const double start = i == 0 ? spans[i].start_seconds : std::max(spans[i].start_seconds, end);
    end = i == 0 ? spans[i].end_seconds : std::max(spans[i].end_seconds, end);
    seconds += std::max(0.0, end - start);
  }
  return seconds;
}

}  // namespace

void add_up(const Plan& plan, const std::vector<TimeSpan>& busy, Timeline& timeline) {
  std::vector<TimeSpan> transfers;
  for (std::size_t id = 0; id < timeline.operations.size(); ++id) {
    const TimeSpan& span = timeline.operations[id];
    const Operation& operation = plan.schedule.operations[id];
    if (is_busy_on_compute(operation)) timeline.compute_seconds += span.seconds();
    if (operation.verb == Verb::kUseCollective) {  // model code waits for it
      timeline.compute_seconds -= span.seconds();
      timeline.use_collective_seconds += span.seconds();
      timeline.communication_seconds += span.seconds();
    }
    if (is_transfer(operation.verb)) transfers.push_back(span);
    const bool communicates = is_collective(plan, operation) || operation.verb == Verb::kSumOverTensor;
    if (!communicates && !is_transfer(operation.verb)) continue;
    timeline.communication_seconds += span.seconds();
    timeline.hidden_seconds += overlap(span, busy);
  }
  timeline.transfer_seconds = union_seconds(std::move(transfers));
}

}  // namespace aliquot
