#pragma once
// The rules of EventSimulator in plain form. At each event, the code looks at all lanes of all pipeline stages.

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/cost/event_simulator.h"

namespace aliquot::testing {

class PlainSimulation {
 public:
  static constexpr int kSteps = EventSimulator::kSteps;

  PlainSimulation(const std::vector<EventSimulator::StagePrices>& stages, bool compute_issues, double compute_speed)
      : compute_issues_(compute_issues), compute_speed_(compute_speed) {
    for (const auto& [plan, prices] : stages) {
      const std::size_t count = plan->schedule.operations.size();
      Stage stage{&plan->schedule.operations, prices, std::vector<LaneState>(kLaneCount),
                  std::vector<TimeSpan>(count * kSteps), std::vector<bool>(count * kSteps, false)};
      for (std::size_t id = 0; id < count; ++id) stage.lane(id).operations.push_back(id);
      stages_.push_back(std::move(stage));
    }
    run();
  }

  /// Returns the time spans of the operations of a pipeline stage, one step after another.
  const std::vector<TimeSpan>& spans(std::size_t stage) const { return stages_[stage].spans; }

 private:
  struct LaneState {
    std::vector<std::size_t> operations = {};
    /// The next operation of the lane. Counts the operations of all steps: next % operations.size() is the index into
    /// `operations`.
    std::size_t next = 0;
    bool running = false, fixed_speed = false;
    double left = 0, speed = 1, since = 0, end = 0;

    std::size_t step() const { return next / operations.size(); }
    std::size_t id() const { return operations[next % operations.size()]; }
  };
  struct Stage {
    const std::vector<Operation>* operations;
    std::vector<Price> prices;
    std::vector<LaneState> lanes;
    std::vector<TimeSpan> spans;
    std::vector<bool> done;
    /// The number of issued operations, counted over all steps.
    std::size_t issued = 0;

    std::size_t count() const { return operations->size(); }
    LaneState& lane(std::size_t id) { return lanes[static_cast<std::size_t>((*operations)[id].lane)]; }
  };
  struct Participant {
    Stage* stage;
    std::size_t id;
  };

  void run() {
    for (;;) {
      while (start_any()) continue;
      double next = std::numeric_limits<double>::infinity();
      for (Stage& stage : stages_) {
        set_speeds(stage);
        for (const LaneState& lane : stage.lanes) next = lane.running ? std::min(next, lane.end) : next;
      }
      if (next == std::numeric_limits<double>::infinity()) return;
      now_ = next;
      for (Stage& stage : stages_) {
        for (LaneState& lane : stage.lanes) {
          if (lane.running && lane.end <= now_) finish(stage, lane);
        }
      }
    }
  }

  bool start_any() {
    bool started = false;
    for (Stage& stage : stages_) {
      for (LaneState& lane : stage.lanes) started = (can_start(stage, lane) && start(stage, lane)) || started;
    }
    return started;
  }

  /// Returns whether the pipeline stage issues no later operation before operation `at` has ended. `at` is an index
  /// into the operations of all steps, one step after another.
  bool blocks_issue(const Stage& stage, std::size_t at) const {
    const Operation& operation = (*stage.operations)[at % stage.count()];
    return operation.verb == Verb::kNorm || (compute_issues_ && operation.lane == Lane::kCompute);
  }

  bool can_start(Stage& stage, const LaneState& lane) const {
    if (lane.running || lane.next == lane.operations.size() * kSteps) return false;
    while (stage.issued < stage.done.size() && (stage.done[stage.issued] || !blocks_issue(stage, stage.issued)))
      ++stage.issued;
    if (lane.step() * stage.count() + lane.id() > stage.issued) return false;
    return std::ranges::all_of((*stage.operations)[lane.id()].after, [&](const Wait& wait) {
      if (wait.of_previous_step && lane.step() == 0) return true;
      const std::size_t step = lane.step() - (wait.of_previous_step ? 1 : 0);
      return bool{stage.done[step * stage.count() + static_cast<std::size_t>(wait.operation)]};
    });
  }

  /// Whether operation `b` of another pipeline stage starts together with `a`.
  static bool start_together(const Operation& a, const Operation& b) {
    if (a.verb == Verb::kNorm || b.verb == Verb::kNorm) return a.verb == b.verb;
    return is_transfer(a.verb) && b.verb == counterpart(a.verb) && a.operand == b.operand &&
           a.micro_batch == b.micro_batch;
  }

  std::vector<Participant> participants(Stage& own, std::size_t id) {
    std::vector<Participant> all = {{&own, id}};
    for (Stage& stage : stages_) {
      for (std::size_t other = 0; other < stage.count() && &stage != &own; ++other) {
        if (start_together((*own.operations)[id], (*stage.operations)[other])) all.push_back({&stage, other});
      }
    }
    return all;
  }

  bool start(Stage& own, const LaneState& of) {
    const std::size_t step = of.step();
    const std::vector<Participant> all = participants(own, of.id());
    double seconds = 0;
    for (const auto& [stage, id] : all) {
      const LaneState& lane = stage->lane(id);
      if (!can_start(*stage, lane) || lane.id() != id || lane.step() != step) return false;
      seconds = std::max(seconds, stage->prices[id].seconds);
    }
    for (const auto& [stage, id] : all) {
      LaneState& lane = stage->lane(id);
      stage->spans[step * stage->count() + id].start_seconds = now_;
      lane.running = true, lane.fixed_speed = all.size() > 1 && (*own.operations)[all.front().id].verb == Verb::kNorm;
      lane.left = seconds, lane.speed = 1, lane.since = now_, lane.end = now_ + seconds;
      if (seconds == 0) finish(*stage, lane);
    }
    return true;
  }

  void finish(Stage& stage, LaneState& lane) const {
    const std::size_t at = lane.step() * stage.count() + lane.id();
    stage.spans[at].end_seconds = now_;
    stage.done[at] = true;
    lane.running = false;
    ++lane.next;
  }

  void set_speeds(Stage& stage) {
    for (LaneState& lane : stage.lanes) {
      if (!lane.running || lane.fixed_speed) continue;
      double speed = std::numeric_limits<double>::infinity();
      for (const Participant& each : participants(stage, lane.id())) speed = std::min(speed, speed_of(each));
      if (speed == lane.speed) continue;
      lane.left -= (now_ - lane.since) * lane.speed;
      lane.since = now_, lane.speed = speed;
      lane.end = now_ + std::max(lane.left, 0.0) / speed;
    }
  }

  double speed_of(const Participant& of) const {
    const Operation& operation = (*of.stage->operations)[of.id];
    const Price& price = of.stage->prices[of.id];
    double sent = 0, received = 0, core_share = 0;
    for (const LaneState& lane : of.stage->lanes) {
      if (!lane.running) continue;
      const Price& other = of.stage->prices[lane.id()];
      const Verb verb = (*of.stage->operations)[lane.id()].verb;
      core_share += other.core_share;
      if (other.seconds > 0 && !is_receive(verb)) sent += other.link_seconds / other.seconds;
      if (other.seconds > 0 && !is_send(verb)) received += other.link_seconds / other.seconds;
    }
    const bool computes = operation.lane == Lane::kCompute && operation.verb != Verb::kUseCollective;
    if (computes) return compute_speed_ * std::max(1 - core_share, 0.1);
    double demand = 1;
    if (!is_receive(operation.verb)) demand = std::max(demand, sent);
    if (!is_send(operation.verb)) demand = std::max(demand, received);
    const LaneState& compute = of.stage->lanes[static_cast<std::size_t>(Lane::kCompute)];
    const bool slowed = compute.running && (*of.stage->operations)[compute.id()].verb != Verb::kUseCollective;
    const double beside =
        slowed && price.seconds_while_computing > 0 ? price.seconds / price.seconds_while_computing : 1;
    return beside * (price.link_seconds > 0 ? 1 / demand : 1);
  }

  std::vector<Stage> stages_;
  bool compute_issues_;
  double compute_speed_;
  double now_ = 0;
};

}  // namespace aliquot::testing
