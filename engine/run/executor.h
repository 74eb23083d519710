#pragma once
// Executes the schedule of a plan on the streams of a device.

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/fault_injector.h"
#include "engine/run/non_finite_gradient_detector.h"
#include "engine/run/skip_agreement.h"
#include "engine/run/step_work.h"
#include "engine/run/timeline_recorder.h"
#include "kernels/device/profiler_ranges.h"
#include "kernels/device/work_graph.h"

namespace aliquot {

/// Decides the updates of a step from the gradient norm.
class StepDecision {
 public:
  virtual ~StepDecision() = default;
  /// Returns the parameters of the updates of a step. Called once per step on the rank's own thread. Must return the
  /// same result on every rank.
  virtual UpdateSteps decide(const NormResult& norm) = 0;
  /// Returns the parameters of updates that run before the norm is known. With update_in_backward, the first update of
  /// a step calls this function. At the end of the step, decide() is called too.
  virtual UpdateSteps decide_before_norm() = 0;
};

/// The stream of each lane, or null if the lane has no operations. Two executors may use the streams alternately.
using LaneStreams = std::array<std::unique_ptr<Stream>, kLaneCount>;

/// Issues the operations of a plan in order, step after step. It stops before model code (forward, recompute,
/// backward), which the caller brackets with open() and close(). Allocates nothing after the first step. Used from the
/// rank's own thread. Everything passed must outlive it. After an exception it must only be destroyed.
class Executor {
 public:
  struct Parts {
    const Plan& plan;
    const MeshGroups& groups;
    LaneStreams& lanes;
    const Arena& arena;
    StepMemory& memory;
    const OffloadStores& offload_stores;
    const HostView& view;
    Updater& updater;
    StateDigests& digests;
    StepDecision& decision;
    const Optimizer& optimizer;
  };
  explicit Executor(const Parts& parts);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// The next operation. After the last operation of a step, it is operation 0 of the next step.
  OperationId next() const { return cursor_; }
  const Operation& operation(OperationId id) const { return plan_.schedule.operations[id]; }
  bool at_model_code() const { return !at_end_of_passes() && is_model_code(operation(cursor_).verb); }
  /// Whether all model code of the step is done. The next operation is then the norm, if the schedule has one.
  bool at_end_of_passes() const { return cursor_ == first_after_passes_; }
  bool at_start_of_step() const { return cursor_ == 0; }

  /// Called when all ranks are idle and have passed a barrier. The next step does not wait for previous steps, and its
  /// progress values are greater than `base`.
  void start_after_barrier(uint64_t base);
  /// Null disables recording.
  void set_recorder(TimelineRecorder* recorder) { recorder_ = recorder; }
  /// Null disables fault injection.
  void set_faults(FaultInjector* faults) {
    faults_ = faults;
    work_.set_faults(faults);
  }
  void set_gradient_detector(NonFiniteGradientDetector* detector) { gradient_detector_ = detector; }
  /// Sets whether the next step computes digests for the comparison with a replay. Without them, kDigestGradients does
  /// nothing, and reduces repeat no sums. Call between steps.
  void set_computes_digests(bool on) {
    computes_digests_ = on;
    work_.set_repeats_sums(on);
  }
  /// Returns the time that lanes spent on repetitions of sums since the last call.
  double drain_repetition_seconds() { return work_.drain_repetition_seconds(); }
  /// Sets the step number that messages show for the step that begins next.
  void set_reported_step(int64_t step) { reported_step_ = step; }
  /// Returns a value greater than all progress values published so far.
  uint64_t progress_end() const { return progress(0, step_ + 1); }

  /// Until end_capture(), captures the work of this step's passes instead of running it. Only on a GPU, at the start of
  /// a step, and if can_capture() is true for all communicators.
  void begin_capture();
  /// Call at the end of the passes.
  std::unique_ptr<WorkGraph> end_capture();
  /// Ends a capture that failed. The executor must then only be destroyed.
  void discard_capture() { capture_.reset(); }
  bool captures() const { return capture_ != nullptr; }
  /// Moves from the start of a step to the end of its passes. A graph then runs in their place.
  void skip_passes();
  /// Launches the captured passes of this step. Call at the end of the passes. The graph waits for all earlier work of
  /// all lanes, and all lanes then wait for the graph.
  void launch(WorkGraph& graph);

  /// Issues operations up to the next model code or the end of the passes.
  void run_to_model_code();
  /// Begins the next operation, which must be model code. Enqueues its waits and prepares the memory that it writes
  /// (StepWork::open_use). `skips_model_code`: whether the caller will skip the model code.
  void open(bool skips_model_code = false);
  /// Begins the next operation, which must be a collective of the open use. Enqueues it. Its model code follows.
  void run_collective();
  /// Ends the open use: its model code and its collectives. Clears the padding of the gradients that the model code
  /// wrote (StepWork::close_use), and calls run_to_model_code().
  void close();
  /// Issues the operations after the passes, such as norm and updates, and moves to the start of the next step.
  void finish_step(bool abandons = false);

  /// Moves to the start of the next step without the operations that are left. No rank may run this executor again.
  void discard_step();

  /// See StepWork::sums_of_sends().
  std::vector<SentSum> sums_of_sends() { return work_.sums_of_sends(); }

  /// The index of the current step, from 1. This executor counts its own steps.
  int64_t step() const { return step_; }
  Stream& stream(Lane lane) { return *lanes_[static_cast<std::size_t>(lane)]; }

 private:
  void note_observed_operations();
  std::string transfer_label(const Operation& operation, std::string_view unit) const;
  void issue(OperationId id);
  /// Runs `body`. If it throws, calls report_position().
  template <typename Body>
  void report_position_on_failure(const Body& body) {
    try {
      body();
    } catch (...) {
      report_position();
      throw;
    }
  }
  void report_position();
  std::string note_position() const;
  void begin(OperationId id);
  void wait_for(const Wait& wait, OperationId id);
  void make_compute_wait();
  void make_lanes_wait();
  void run(OperationId id);
  void inject_random_fault(Stream& lane, Verb verb) const;
  void end_work(OperationId id);
  void begin_range(OperationId id);
  void end_range();
  void announce_end(OperationId id);
  void norm(Stream& lane, OperationId id);
  void throw_if_state_differs();
  void update(const Operation& operation);
  Label label(OperationId id) const { return {labels_[id], reported_step_}; }
  uint64_t progress(OperationId id, int64_t step) const;

  const Plan& plan_;
  World& world_;
  const MeshGroups& groups_;
  LaneStreams& lanes_;
  StepMemory& memory_;
  StepDecision& decision_;
  StepWork work_;
  SkipAgreement skips_;
  std::unique_ptr<WorkCapture> capture_;  // null unless the passes are captured
  std::unique_ptr<Event> compute_point_;  // the next two: only on GPUs
  std::array<std::unique_ptr<Event>, kLaneCount> lane_points_;
  bool in_graph_ = false;                 // launch() runs
  int64_t graph_step_ = -1;               // the last step whose passes a graph ran
  std::optional<ProfilerRanges> ranges_;  // named after the operations; only on GPUs
  int open_ranges_ = 0;
  TimelineRecorder* recorder_ = nullptr;
  FaultInjector* faults_ = nullptr;
  NonFiniteGradientDetector* gradient_detector_ = nullptr;
  UpdateSteps update_steps_;
  bool decided_ = false;   // decide_before_norm() was called in this step; only with update_in_backward
  bool abandons_ = false;  // this rank abandons the current step
  bool computes_digests_ = false;
  OperationId cursor_ = 0;
  OperationId open_ = 0;  // the model code that open() has begun
  OperationId first_after_passes_ = 0;
  int64_t step_ = 1, first_step_ = 1;  // first_step_: the first step after start_after_barrier()
  int64_t reported_step_ = 0;
  uint64_t progress_base_ = 0;  // not less than any progress value published before first_step_

  // Derived from the schedule. Unless stated otherwise, the vectors are indexed by operation.
  std::vector<bool> observed_here_;  // whether this rank waits for the operation
  /// For each peer group, and in it for each operation: whether another rank of the group waits for the operation.
  std::array<std::vector<bool>, kPeerGroupCount> observed_by_peers_;
  std::vector<std::vector<BufferId>> begins_, ends_;
  std::vector<std::unique_ptr<Event>> events_;  // null unless observed_here_, or on a GPU observed by peers
  std::vector<std::string_view> labels_;        // name of the operation's first unit, or of its verb; see made_labels_
  std::deque<std::string> made_labels_;         // labels of transfers and of collectives of uses
};

}  // namespace aliquot
