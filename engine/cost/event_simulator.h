#pragma once
// An event simulation of several steps of a schedule.

#include <array>
#include <vector>

#include "engine/cost/prices.h"

namespace aliquot {

/// Simulates kSteps consecutive steps, enough that the last ones do not depend on the start. An operation starts when
/// its lane is free and its waits are satisfied. Operations that run at the same time share the link of the node.
/// Compute and data movement slow each other down, as Price tells.
class EventSimulator {
 public:
  static constexpr int kSteps = 4;
  /// `compute_speed`: relative speed of compute, less than 1 if a rank has less than one core per thread.
  EventSimulator(const Plan& plan, std::vector<Price> prices, bool compute_issues, double compute_speed);

  const std::vector<Price>& prices() const { return prices_; }
  const std::vector<TimeSpan>& spans(int step) const { return spans_[step]; }
  double compute_end(int step) const { return compute_end_[step]; }

 private:
  /// An index of operations that continues through all steps.
  using OperationIndex = int64_t;
  struct LaneState {
    std::vector<OperationId> operations;  // operations of the lane in one step, in order
    OperationIndex next = 0;              // index into `operations`, continued through all steps
    bool running = false;
    double left_seconds = 0, speed = 1, since = 0, end = 0;  // state of the running operation
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
  OperationIndex first_blocked_ = 0;  // this unfinished operation blocks the issue of all later ones
  double now_ = 0;
};

}  // namespace aliquot
