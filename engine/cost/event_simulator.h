#pragma once
// Operations that take their time, slow one another down and wait for one another: steps of a schedule, played.

#include <array>
#include <vector>

#include "engine/cost/prices.h"

namespace aliquot {

/// Steps one after the other, until nothing of the first one's start is left. An operation starts when its lane is free and
/// its waits are over. While several run, those on the node's link share it, and computing and what moves bytes hold each
/// other up as their prices say.
class EventSimulator {
 public:
  static constexpr int kSteps = 4;
  /// `compute_speed`: what a rank that has less than a core for each thread computes with.
  EventSimulator(const Plan& plan, std::vector<Price> prices, bool compute_issues, double compute_speed);

  const std::vector<Price>& prices() const { return prices_; }
  const std::vector<TimeSpan>& spans(int step) const { return spans_[step]; }
  double compute_end(int step) const { return compute_end_[step]; }

 private:
  /// An operation of one of the steps, counted on through all of them.
  using OperationIndex = int64_t;
  struct LaneState {
    std::vector<OperationId> operations;  // of a step, in order
    OperationIndex next = 0;              // of those, through all steps
    bool running = false;
    double left_seconds = 0, speed = 1, since = 0, end = 0;  // of what runs
  };

  int64_t count() const { return static_cast<int64_t>(operations_.size()); }
  int step_of(const LaneState& lane) const;
  OperationId operation_of(const LaneState& lane) const;
  bool blocks_issue(OperationId id) const;
  bool can_start(const LaneState& lane) const;
  void run();
  bool start_ready();
  void finish(LaneState& lane, double now);
  void set_speeds();
  double speed_of(const LaneState& lane, bool computing, double link_demand, double core_share) const;

  const std::vector<Operation>& operations_;
  std::vector<Price> prices_;
  bool compute_issues_;
  double compute_speed_;
  std::array<LaneState, kLaneCount> lanes_;
  std::array<std::vector<TimeSpan>, kSteps> spans_;
  std::array<std::vector<bool>, kSteps> done_;
  std::array<double, kSteps> compute_end_{};
  OperationIndex first_blocked_ = 0;  // operations from here on are not issued: this one holds them up
  double now_ = 0;
};

}  // namespace aliquot
