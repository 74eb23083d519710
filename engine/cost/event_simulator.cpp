#include "engine/cost/event_simulator.h"

#include <algorithm>
#include <limits>

namespace aliquot {

EventSimulator::EventSimulator(const Plan& plan, std::vector<Price> prices, bool compute_issues, double compute_speed)
    : operations_(plan.schedule.operations),
      prices_(std::move(prices)),
      compute_issues_(compute_issues),
      compute_speed_(compute_speed) {
  for (OperationId id = 0; id < count(); ++id)
    lanes_[static_cast<std::size_t>(operations_[id].lane)].operations.push_back(id);
  for (int step = 0; step < kSteps; ++step) {
    spans_[step].resize(operations_.size());
    done_[step].resize(operations_.size(), false);
  }
  run();
}

int EventSimulator::step_of(const LaneState& lane) const {
  return static_cast<int>(lane.next / static_cast<OperationIndex>(lane.operations.size()));
}

OperationId EventSimulator::operation_of(const LaneState& lane) const {
  return lane.operations[static_cast<std::size_t>(lane.next % static_cast<OperationIndex>(lane.operations.size()))];
}

/// Whether later operations are issued only after this one: the host waits for the norm, and compute may run on the
/// issuing thread.
bool EventSimulator::blocks_issue(OperationId id) const {
  return operations_[id].verb == Verb::kNorm || (compute_issues_ && operations_[id].lane == Lane::kCompute);
}

bool EventSimulator::can_start(const LaneState& lane) const {
  const int step = step_of(lane);
  const OperationId id = operation_of(lane);
  if (step * count() + id > first_blocked_) return false;
  return std::ranges::all_of(operations_[id].after, [&](const Wait& wait) {
    const int of = step - (wait.of_previous_step ? 1 : 0);
    return of < 0 || done_[of][wait.operation];
  });
}

void EventSimulator::run() {
  const OperationIndex end = kSteps * count();
  for (;;) {
    while (first_blocked_ < end && (!blocks_issue(static_cast<OperationId>(first_blocked_ % count())) ||
                                    done_[first_blocked_ / count()][first_blocked_ % count()]))
      ++first_blocked_;
    if (start_ready()) continue;
    double next = std::numeric_limits<double>::infinity();
    set_speeds();
    for (const LaneState& lane : lanes_) {
      if (lane.running) next = std::min(next, lane.end);
    }
    if (next == std::numeric_limits<double>::infinity()) return;
    for (LaneState& lane : lanes_) {
      if (lane.running && lane.end <= next) finish(lane, next);
    }
    now_ = next;
  }
}

/// Starts operations that can start. Returns true if an operation of duration 0 finished, so that more may start.
bool EventSimulator::start_ready() {
  bool done = false;
  for (LaneState& lane : lanes_) {
    const bool over = lane.operations.empty() || step_of(lane) == kSteps;
    if (lane.running || over || !can_start(lane)) continue;
    const double seconds = prices_[operation_of(lane)].seconds;
    spans_[step_of(lane)][operation_of(lane)].start_seconds = now_;
    lane = {.operations = std::move(lane.operations),
            .next = lane.next,
            .running = true,
            .left_seconds = seconds,
            .speed = 1,
            .since = now_,
            .end = now_ + seconds};
    if (seconds > 0) continue;
    finish(lane, now_);
    done = true;
  }
  return done;
}

void EventSimulator::finish(LaneState& lane, double now) {
  const int step = step_of(lane);
  const OperationId id = operation_of(lane);
  spans_[step][id].end_seconds = now;
  done_[step][id] = true;
  if (operations_[id].lane == Lane::kCompute) compute_end_[step] = now;
  lane.running = false;
  ++lane.next;
}

void EventSimulator::set_speeds() {
  double link_demand = 0, core_share = 0;
  for (const LaneState& lane : lanes_) {
    if (!lane.running) continue;
    const Price& price = prices_[operation_of(lane)];
    link_demand += price.link_seconds / price.seconds;
    core_share += price.core_share;
  }
  const bool computing = lanes_[static_cast<std::size_t>(Lane::kCompute)].running;
  for (LaneState& lane : lanes_) {
    if (!lane.running) continue;
    const double speed = speed_of(lane, computing, link_demand, core_share);
    if (speed == lane.speed) continue;
    lane.left_seconds -= (now_ - lane.since) * lane.speed;
    lane.since = now_;
    lane.speed = speed;
    lane.end = now_ + std::max(lane.left_seconds, 0.0) / speed;
  }
}

double EventSimulator::speed_of(const LaneState& lane, bool computing, double link_demand, double core_share) const {
  constexpr double kLeast = 0.1;  // the operating system schedules every thread sometimes
  const OperationId id = operation_of(lane);
  const Price& price = prices_[id];
  if (operations_[id].lane == Lane::kCompute) return compute_speed_ * std::max(1 - core_share, kLeast);
  const double beside =
      computing && price.seconds_while_computing > 0 ? price.seconds / price.seconds_while_computing : 1;
  const double on_link = price.link_seconds > 0 && link_demand > 1 ? 1 / link_demand : 1;
  return beside * on_link;
}

}  // namespace aliquot
