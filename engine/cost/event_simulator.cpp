#include "engine/cost/event_simulator.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

namespace aliquot {

EventSimulator::EventSimulator(std::vector<StagePrices> stages, bool compute_issues, double compute_speed)
    : compute_issues_(compute_issues), compute_speed_(compute_speed) {
  for (StagePrices& from : stages) {
    Stage stage{.operations = &from.plan->schedule.operations, .prices = std::move(from.prices)};
    for (OperationId id = 0; id < stage.count(); ++id) stage.lane_of(id).operations.push_back(id);
    for (int step = 0; step < kSteps; ++step) {
      stage.spans[step].resize(stage.operations->size());
      stage.done[step].resize(stage.operations->size(), false);
    }
    stage.counterparts.resize(stage.operations->size());
    stages_.push_back(std::move(stage));
  }
  find_counterparts();
  run();
}

/// Finds the operations that start together: pairs of a send and a receive, and the norms of all pipeline stages.
/// Without the plans of other pipeline stages, a send or receive has no counterpart and runs alone.
void EventSimulator::find_counterparts() {
  std::map<std::tuple<Verb, int32_t, int32_t>, Participant> sides;
  for (int s = 0; s < static_cast<int>(stages_.size()); ++s) {
    for (OperationId id = 0; id < stages_[s].count(); ++id) {
      const Operation& operation = stages_[s].operation(id);
      if (operation.verb == Verb::kNorm) norms_.push_back({s, id});
      if (is_transfer(operation.verb)) sides[{operation.verb, operation.operand, operation.micro_batch}] = {s, id};
    }
  }
  for (const auto& [key, own] : sides) {
    const auto& [verb, use, micro_batch] = key;
    const auto other = sides.find({counterpart(verb), use, micro_batch});
    if (other != sides.end()) stages_[own.stage].counterparts[own.operation] = other->second;
  }
}

int EventSimulator::step_of(const LaneState& lane) {
  return static_cast<int>(lane.next / static_cast<OperationIndex>(lane.operations.size()));
}

OperationId EventSimulator::operation_of(const LaneState& lane) {
  return lane.operations[static_cast<std::size_t>(lane.next % static_cast<OperationIndex>(lane.operations.size()))];
}

/// Whether later operations are issued only after operation `id` has ended. True for the norm, because the host waits
/// for it, and for compute that runs on the issuing thread.
bool EventSimulator::blocks_issue(const Stage& stage, OperationId id) const {
  const Operation& operation = stage.operation(id);
  return operation.verb == Verb::kNorm || (compute_issues_ && operation.lane == Lane::kCompute);
}

void EventSimulator::advance_issue(Stage& stage) const {
  const OperationIndex end = kSteps * stage.count();
  while (stage.first_blocked < end &&
         (!blocks_issue(stage, static_cast<OperationId>(stage.first_blocked % stage.count())) ||
          stage.done[stage.first_blocked / stage.count()][stage.first_blocked % stage.count()]))
    ++stage.first_blocked;
}

/// Checks the waits in order and remembers the satisfied ones, because they stay satisfied.
bool EventSimulator::can_start(const Stage& stage, LaneState& lane) const {
  if (lane.running || lane.operations.empty() || step_of(lane) == kSteps) return false;
  const int step = step_of(lane);
  const OperationId id = operation_of(lane);
  if (step * stage.count() + id > stage.first_blocked) return false;
  const std::vector<Wait>& waits = stage.operation(id).after;
  for (; lane.satisfied < waits.size(); ++lane.satisfied) {
    const Wait& wait = waits[lane.satisfied];
    const int of = step - (wait.of_previous_step ? 1 : 0);
    if (of >= 0 && !stage.done[of][wait.operation]) return false;
  }
  return true;
}

void EventSimulator::run() {
  for (int s = 0; s < static_cast<int>(stages_.size()); ++s) changed_.push_back(s);
  for (;;) {
    start_ready();
    set_ends();
    if (ends_.empty()) return;
    finish_next();
  }
}

/// Starts all operations that can start now. An operation can become able to start only by a change on its own stage,
/// or on the stage of an operation that starts with it. `changed_` grows in the loop, because an operation of duration
/// 0 ends at once and may enable others.
void EventSimulator::start_ready() {
  for (std::size_t i = 0; i < changed_.size(); ++i) {
    const int s = changed_[i];
    advance_issue(stages_[s]);
    for (LaneState& lane : stages_[s].lanes) {
      if (!can_start(stages_[s], lane)) continue;
      find_participants(s, operation_of(lane));
      if (all_can_start(participants_, step_of(lane))) start(participants_);
    }
  }
}

/// Computes when the next operation of each changed pipeline stage ends. A change on one side of a transfer also
/// changes the speed of the other side.
void EventSimulator::set_ends() {
  for (const int s : changed_) stages_[s].load = load_of(stages_[s]);
  add_partners(changed_);
  for (const int s : changed_) {
    set_speeds(stages_[s]);
    double next = std::numeric_limits<double>::infinity();
    for (const LaneState& lane : stages_[s].lanes) {
      if (lane.running) next = std::min(next, lane.end);
    }
    if (next < std::numeric_limits<double>::infinity()) ends_.push({next, s});
  }
  changed_.clear();
}

/// Advances the time to the earliest end of a running operation, and finishes all operations that end then.
void EventSimulator::finish_next() {
  now_ = ends_.top().first;
  while (!ends_.empty() && ends_.top().first == now_) {
    const int s = ends_.top().second;
    ends_.pop();
    for (LaneState& lane : stages_[s].lanes) {
      if (!lane.running || lane.end > now_) continue;
      finish(stages_[s], lane);
      changed_.push_back(s);
    }
  }
}

/// Sets `participants_` to operation `id` and the operations that start together with it.
void EventSimulator::find_participants(int stage, OperationId id) {
  participants_ = {{stage, id}};
  if (const Participant other = stages_[stage].counterparts[id]; other.stage >= 0) participants_.push_back(other);
  if (stages_[stage].operation(id).verb != Verb::kNorm) return;
  std::ranges::copy_if(norms_, std::back_inserter(participants_),
                       [&](const Participant& norm) { return norm.stage != stage; });
}

bool EventSimulator::all_can_start(const std::vector<Participant>& participants, int step) {
  return std::ranges::all_of(participants, [&](const Participant& each) {
    Stage& stage = stages_[each.stage];
    LaneState& lane = stage.lane_of(each.operation);
    return can_start(stage, lane) && operation_of(lane) == each.operation && step_of(lane) == step;
  });
}

/// Starts the operations. If they take no time, also finishes them.
void EventSimulator::start(const std::vector<Participant>& participants) {
  double seconds = 0;
  for (const Participant& each : participants)
    seconds = std::max(seconds, stages_[each.stage].prices[each.operation].seconds);
  const bool is_norm =
      stages_[participants.front().stage].operation(participants.front().operation).verb == Verb::kNorm;
  for (const Participant& each : participants) {
    Stage& stage = stages_[each.stage];
    LaneState& lane = stage.lane_of(each.operation);
    stage.spans[step_of(lane)][each.operation].start_seconds = now_;
    lane = {.operations = std::move(lane.operations),
            .next = lane.next,
            .running = true,
            .fixed_speed = is_norm && participants.size() > 1,
            .left_seconds = seconds,
            .speed = 1,
            .since = now_,
            .end = now_ + seconds};
    if (seconds == 0) finish(stage, lane);
    changed_.push_back(each.stage);
  }
}

void EventSimulator::finish(Stage& stage, LaneState& lane) const {
  const int step = step_of(lane);
  const OperationId id = operation_of(lane);
  stage.spans[step][id].end_seconds = now_;
  stage.done[step][id] = true;
  if (stage.operation(id).lane == Lane::kCompute) stage.compute_end[step] = now_;
  lane.running = false;
  lane.satisfied = 0;
  ++lane.next;
}

EventSimulator::Load EventSimulator::load_of(const Stage& stage) {
  const LaneState& compute = stage.lanes[static_cast<std::size_t>(Lane::kCompute)];
  Load load{.computes = compute.running && stage.operation(operation_of(compute)).verb != Verb::kUseCollective};
  for (const LaneState& lane : stage.lanes) {
    if (!lane.running) continue;
    const OperationId id = operation_of(lane);
    const Price& price = stage.prices[id];
    load.core_share += price.core_share;
    if (price.seconds == 0) continue;
    const Verb verb = stage.operation(id).verb;
    const double demand = price.link_seconds / price.seconds;
    if (!is_receive(verb)) load.sent_demand += demand;
    if (!is_send(verb)) load.received_demand += demand;
  }
  return load;
}

/// Adds the pipeline stages on the other sides of the transfers that run on `stages`.
void EventSimulator::add_partners(std::vector<int>& stages) const {
  std::ranges::sort(stages);
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  const std::size_t count = stages.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Stage& stage = stages_[stages[i]];
    for (const LaneState& lane : stage.lanes) {
      const int partner = lane.running ? stage.counterparts[operation_of(lane)].stage : -1;
      if (partner >= 0) stages.push_back(partner);
    }
  }
}

void EventSimulator::set_speeds(Stage& stage) const {
  const int index = static_cast<int>(&stage - stages_.data());
  for (LaneState& lane : stage.lanes) {
    if (!lane.running || lane.fixed_speed) continue;
    double speed = speed_of({index, operation_of(lane)});
    const Participant& other = stage.counterparts[operation_of(lane)];
    if (other.stage >= 0) speed = std::min(speed, speed_of(other));
    if (speed == lane.speed) continue;
    lane.left_seconds -= (now_ - lane.since) * lane.speed;
    lane.since = now_;
    lane.speed = speed;
    lane.end = now_ + std::max(lane.left_seconds, 0.0) / speed;
  }
}

/// Returns the speed that the load of its own pipeline stage permits.
double EventSimulator::speed_of(const Participant& of) const {
  // Compute keeps at least this fraction of its speed, because the operating system gives every thread some time.
  constexpr double kLeast = 0.1;
  const Stage& stage = stages_[of.stage];
  const Load& load = stage.load;
  const Price& price = stage.prices[of.operation];
  const Operation& operation = stage.operation(of.operation);
  if (operation.lane == Lane::kCompute && operation.verb != Verb::kUseCollective)
    return compute_speed_ * std::max(1 - load.core_share, kLeast);
  const double beside =
      load.computes && price.seconds_while_computing > 0 ? price.seconds / price.seconds_while_computing : 1;
  const double sent = is_receive(operation.verb) ? 0 : load.sent_demand;
  const double received = is_send(operation.verb) ? 0 : load.received_demand;
  const double demand = std::max(sent, received);
  return beside * (price.link_seconds > 0 && demand > 1 ? 1 / demand : 1);
}

}  // namespace aliquot
