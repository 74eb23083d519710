#pragma once
// Walks a schedule on the streams of a device; knows no policy.

#include <array>
#include <memory>
#include <vector>

#include "engine/run/fault_injector.h"
#include "engine/run/non_finite_gradient_detector.h"
#include "engine/run/step_work.h"
#include "engine/run/timeline_recorder.h"

namespace aliquot {

/// What the end of a step decides, from the norm: the update of all units.
class StepDecision {
 public:
  virtual ~StepDecision() = default;
  /// Called once a step, by the rank's own thread, the same on every rank.
  virtual UpdateSteps decide(const NormResult& norm) = 0;
  /// Called at a step's first update instead, where updates do not wait for the norm; decide() comes after them.
  virtual UpdateSteps decide_before_norm() = 0;
};

/// One stream a lane that something runs on. Two executors may take turns on them.
using LaneStreams = std::array<std::unique_ptr<Stream>, kLaneCount>;

/// Issues the operations of a plan in order, step after step. Forward and backward are the model's: the executor stops
/// there, and its caller opens and closes them. Allocates nothing after the first step. Used from the rank's own thread;
/// everything given must outlive it. After an exception only destruction is allowed.
class Executor {
 public:
  struct Parts {
    const Plan& plan;
    const ReplicaGroups& groups;
    LaneStreams& lanes;
    StepMemory& memory;
    const OffloadStores& offload_stores;
    Updater& updater;
    StepDecision& decision;
    const Optimizer& optimizer;
  };
  explicit Executor(const Parts& parts);

  /// The operation that comes next; the schedule's end wraps around.
  OperationId next() const { return cursor_; }
  const Operation& operation(OperationId id) const { return plan_.schedule.operations[id]; }
  bool at_model_code() const { return !at_end_of_passes() && is_model_code(operation(cursor_).verb); }
  /// Behind the last of the model's code: at the norm, if there is one.
  bool at_end_of_passes() const { return cursor_ == first_after_passes_; }
  bool at_start_of_step() const { return cursor_ == 0; }

  /// The next step starts where all ranks have met with nothing under way, and publishes progress from `base` on.
  void start_after_barrier(uint64_t base);
  /// Null: nobody takes the time.
  void set_recorder(TimelineRecorder* recorder) { recorder_ = recorder; }
  /// Null: nothing is staged.
  void set_faults(FaultInjector* faults) { faults_ = faults; }
  void set_gradient_detector(NonFiniteGradientDetector* watch) { gradient_detector_ = watch; }
  /// How messages call the step that begins.
  void set_reported_step(int64_t step) { reported_step_ = step; }
  /// Above all that was published so far.
  uint64_t progress_end() const { return progress(0, step_ + 1); }

  /// Issues everything up to the next of the model's code, or up to the end of the passes.
  void run_to_model_code();
  /// At the model's code: waits for what it needs, and readies what it writes (StepWork::open_use). `skips_model_code`: the model's
  /// code is not run.
  void open(bool skips_model_code = false);
  /// It is done: what it wrote is made good (StepWork::close_use), and what follows is issued, up to the next of the model's
  /// code.
  void close();
  /// At the end of the passes: norm, decision, updates. Leaves the executor at the start of the next step.
  void finish_step(bool abandons = false);

  /// Of the step being executed, from 1.
  int64_t step() const { return step_; }
  Stream& stream(Lane lane) { return *lanes_[static_cast<std::size_t>(lane)]; }

 private:
  void note_observed_operations();
  void issue(OperationId id);
  template <typename Work>
  void report_position_on_failure(const Work& work);
  std::string note_position() const;
  void begin(OperationId id);
  void run(OperationId id);
  void end(OperationId id);
  void update(const Operation& operation);
  Label label(OperationId id) const { return {labels_[id], reported_step_}; }
  uint64_t progress(OperationId id, int64_t step) const;

  const Plan& plan_;
  World& world_;
  Communicator& ranks_;  // of the replica: the plan's
  LaneStreams& lanes_;
  StepMemory& memory_;
  StepDecision& decision_;
  StepWork work_;
  TimelineRecorder* recorder_ = nullptr;
  FaultInjector* faults_ = nullptr;
  NonFiniteGradientDetector* gradient_detector_ = nullptr;
  UpdateSteps update_steps_;
  bool decided_ = false;   // for this step, where that does not wait for the norm
  bool abandons_ = false;  // this step
  OperationId cursor_ = 0;
  OperationId first_after_passes_ = 0;
  int64_t step_ = 1, first_step_ = 1;  // the first since all ranks met
  int64_t reported_step_ = 0;
  uint64_t progress_base_ = 0;  // above all that was published before

  // What the schedule says, turned round once: by operation.
  std::vector<bool> observed_here_, observed_by_all_;
  std::vector<std::vector<BufferId>> begins_, ends_;
  std::vector<std::unique_ptr<Event>> events_;  // where observed here
  std::vector<std::string_view> labels_;        // the first unit that it is about
};

}  // namespace aliquot
