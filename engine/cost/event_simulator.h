#pragma once
// An event simulation of several steps of a schedule.

#include <array>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "engine/cost/prices.h"

namespace aliquot {

/// Simulates kSteps consecutive steps, enough that the last ones do not depend on the start. One rank of each pipeline
/// stage is simulated, because all ranks of a stage behave identically. An operation starts when its lane is free and
/// its waits are satisfied. A send and its receive start together and run at the speed of the slower side. The norms of
/// all stages start together too, and nothing slows them down. Operations that run at the same time on a stage share
/// the link of its node. The link is full duplex: collectives use both of its directions, a send or a receive uses one.
/// Pipeline stages do not share links, even if they are on one node. Compute and data movement slow each other down by
/// the amounts in Price. The time of the simulation is nearly linear in the number of operations of all pipeline
/// stages.
class EventSimulator {
 public:
  static constexpr int kSteps = 4;
  /// The plan of a pipeline stage, which must outlive the simulator, and the prices of its operations.
  struct StagePrices {
    const Plan* plan;
    std::vector<Price> prices;
  };
  /// `stages`: all pipeline stages, in order. `compute_speed`: relative speed of compute, less than 1 if a rank has
  /// less than one core per thread.
  EventSimulator(std::vector<StagePrices> stages, bool compute_issues, double compute_speed);
  EventSimulator(const Plan& plan, std::vector<Price> prices, bool compute_issues, double compute_speed)
      : EventSimulator({{&plan, std::move(prices)}}, compute_issues, compute_speed) {}

  const std::vector<Price>& prices(int stage = 0) const { return stages_[stage].prices; }
  const std::vector<TimeSpan>& spans(int step, int stage = 0) const { return stages_[stage].spans[step]; }
  double compute_end(int step, int stage = 0) const { return stages_[stage].compute_end[step]; }

 private:
  /// Counts the operations of a list that repeats in every step. The index is the step, times the length of the list,
  /// plus the position in the list.
  using OperationIndex = int64_t;
  struct LaneState {
    std::vector<OperationId> operations;  // operations of the lane in one step, in order
    OperationIndex next = 0;              // the running or next operation, counted through all steps
    std::size_t satisfied = 0;            // the number of waits of the next operation that are known to be satisfied
    bool running = false;
    bool fixed_speed = false;  // no other operation slows down the running operation
    /// The running operation: seconds of work left at time `since`, its speed from then on, and its predicted end.
    double left_seconds = 0, speed = 1, since = 0, end = 0;
  };
  /// An operation on one of the pipeline stages.
  struct Participant {
    int stage = -1;
    OperationId operation = -1;
  };
  /// What the running operations of a pipeline stage use. A demand is the sum, over the operations, of the part of
  /// their time in which they use that direction of the link.
  struct Load {
    double sent_demand = 0, received_demand = 0;
    double core_share = 0;  // fraction by which they slow down compute
    bool computes = false;
  };
  struct Stage {
    const std::vector<Operation>* operations;
    std::vector<Price> prices;
    /// For each send or receive, its counterpart on the neighboring stage. Other operations have stage -1 here.
    std::vector<Participant> counterparts = {};
    std::array<LaneState, kLaneCount> lanes = {};
    std::array<std::vector<TimeSpan>, kSteps> spans = {};
    std::array<std::vector<char>, kSteps> done = {};  // char, because it is faster than bool
    std::array<double, kSteps> compute_end{};
    Load load = {};
    OperationIndex first_blocked = 0;  // the first unfinished operation that blocks the issue of later ones

    int64_t count() const { return static_cast<int64_t>(operations->size()); }
    const Operation& operation(OperationId id) const { return (*operations)[static_cast<std::size_t>(id)]; }
    LaneState& lane_of(OperationId id) { return lanes[static_cast<std::size_t>(operation(id).lane)]; }
  };

  static int step_of(const LaneState& lane);
  static OperationId operation_of(const LaneState& lane);
  void find_counterparts();
  bool blocks_issue(const Stage& stage, OperationId id) const;
  void advance_issue(Stage& stage) const;
  bool can_start(const Stage& stage, LaneState& lane) const;
  void run();
  void start_ready();
  void set_ends();
  void finish_next();
  void find_participants(int stage, OperationId id);
  bool all_can_start(const std::vector<Participant>& participants, int step);
  void start(const std::vector<Participant>& participants);
  void finish(Stage& stage, LaneState& lane) const;
  static Load load_of(const Stage& stage);
  void add_partners(std::vector<int>& stages) const;
  void set_speeds(Stage& stage) const;
  double speed_of(const Participant& of) const;

  /// The time at which the next operation of a pipeline stage ends, and the index of that pipeline stage.
  using StageEnd = std::pair<double, int>;

  std::vector<Stage> stages_;
  std::vector<Participant> norms_;         // the norm operations of the pipeline stages, which start together
  std::vector<Participant> participants_;  // set by find_participants(); a member, so that it is allocated once
  /// Pipeline stages on which operations have started or finished since set_ends(). A stage may occur several times.
  std::vector<int> changed_;
  /// The next end on each stage. May contain outdated entries, whose operation ends later or has ended already.
  std::priority_queue<StageEnd, std::vector<StageEnd>, std::greater<>> ends_;
  bool compute_issues_;
  double compute_speed_;
  double now_ = 0;
};

}  // namespace aliquot
