#pragma once
// The state of a materialized engine: memory and executors of a plan, and the progress of the current step.

#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/executor.h"
#include "engine/run/fault_injector.h"
#include "engine/run/memory/pointer_bindings.h"
#include "engine/run/non_finite_gradient_detector.h"
#include "engine/run/replay_check.h"
#include "engine/scope.h"
#include "engine/sharded_state.h"
#include "engine/step_decider.h"

namespace aliquot {

/// Runs one plan, from materialize() or set_trainable() until set_trainable() replaces the session. Construction is
/// collective. Used from the rank's own thread. Everything passed by reference must outlive it.
///
/// Its members form layers: groups, memory (arena and offload stores), views of that memory (weights, updater,
/// bindings), executors, and streams. Each layer refers to the layers declared before it. The streams are destroyed
/// first, because the destructor of a stream waits for work that uses all other layers.
class Session : private CollectiveRunner {
 public:
  struct Parts {
    World& world;
    const EngineOptions& options;
    const Recompute& recompute;
    StepDecider& decider;
    std::shared_ptr<const Plan> plan;
    Plan evaluation;
    std::optional<Plan> replay;                    // set with Policy::replay_every
    std::vector<std::vector<PointerSlots>> slots;  // for each unit, the pointers of each parameter
    std::unique_ptr<Stream>& compute_stream;       // the user's stream or null; moved from if the constructor succeeds
  };
  explicit Session(Parts parts);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Every public function of the engine calls this first. Rethrows an exception that close() stored. Completes an
  /// evaluation that an exception interrupted.
  void finish_pending();

  // In each micro-batch, every use is opened and closed. step() ends the step. These functions throw UsageError if they
  // are called out of order.
  void begin_micro_batch();
  /// See Engine::run_passes().
  void run_passes(const std::function<void()>& passes);
  bool captures_passes() const { return captures_passes_; }
  void open(std::span<const UnitId> units, UseKind kind);
  /// Opens the next use of the step, and begins its micro-batch if necessary. Returns false after the last use.
  bool open_next();
  /// Whether the open use repeats a micro-batch, and the data coordinate whose samples it reads.
  bool is_replay() const { return replay_ && active_ == &replay_->executor; }
  int data_coordinate() const;
  /// See Engine::compare_loss().
  void compare_loss(double loss, bool replayed);
  /// Opens the next use of an evaluation. After the last use, returns false once; the next call begins another
  /// evaluation.
  bool open_next_evaluation();
  /// The operation and the kind of the open use.
  const Operation& open_operation() const { return active_->operation(open_code_); }
  UseKind open_kind() const { return kind_of(open_operation().verb); }
  /// Closes the open use. If that throws, stores the exception, which finish_pending() rethrows.
  void close(bool by_exception) noexcept;
  void skip(std::span<const UnitId> units);
  const UseMemory& use_memory() const { return use_memory_; }
  StepReport step();
  /// Makes all ranks skip the update of this step.
  void abandon();
  /// Abandons `step` because an exception left one of its micro-batches. Has no effect if that step is already
  /// finished.
  void abandon_micro_batch(int64_t step) noexcept;
  /// See Engine::sum_losses().
  void sum_losses(std::span<double> values);

  /// Throws UsageError, naming `call`, if a step or an evaluation is not finished or a scope is open.
  void require_between_steps(std::string_view call) const;
  /// Waits for all work that this rank has enqueued. Throws FaultError if kernels of a GPU have found that the state
  /// differs from its digests.
  void wait_until_idle() const;
  /// May be used only between steps and after wait_until_idle().
  const ShardedState& state() const { return state_; }
  /// Like state(), for callers that may change the state. First compares the digests of the state, if there are any.
  const ShardedState& changeable_state();
  /// Compares the digests of the state. Throws FaultError if they differ.
  void compare_digests() const;

  Stream& compute_stream() { return executor_.stream(Lane::kCompute); }
  /// Moves the compute stream out for another session. This session must not run anything until resume().
  std::unique_ptr<Stream> release_compute_stream();
  /// Undoes release_compute_stream() and calls guard_pointers().
  void resume(std::unique_ptr<Stream> compute_stream);
  /// Sets the model's pointers to this session's guard addresses.
  void guard_pointers() { bindings_.guard_all(); }

  /// See Engine::record_timelines().
  void record_timelines();
  bool is_recording() const { return recorder_.has_value(); }
  /// See Engine::timeline().
  Timeline timeline(double* began);

 private:
  /// How far the replay of the current step is. kRound1 and kRound2: its passes run. kReplayed: the gradients of the
  /// step must be compared at the end of its passes. kDecides: a difference was found, and round 2 has run.
  enum class ReplayProgress : uint8_t { kNone, kRound1, kReplayed, kRound2, kDecides, kCompared };

  /// What runs a plan that uses the memory of the training plan.
  struct SecondaryRun {
    SecondaryRun(Session& session, const Plan& plan, const std::vector<std::vector<PointerSlots>>& slots);

    StepMemory memory;
    ModelAddresses addresses;
    Executor executor;
  };

  std::vector<const Plan*> secondary_plans() const;
  StepMemory::Parts memory_of(const Plan& plan) const;
  Executor::Parts executor_of(const Plan& plan, StepMemory& memory);
  void make_lane(Lane lane);
  std::unique_ptr<Stream>& compute_lane() { return lanes_[static_cast<std::size_t>(Lane::kCompute)]; }

  bool evaluates() const { return active_ == &evaluation_run_.executor; }
  bool trains() const { return active_ == &executor_; }
  ModelAddresses& addresses();
  void run_collective(std::string_view name) override;
  const UseCollective* next_collective() const;
  void refuse_open_scope() const;
  void begin_step();
  bool next_use_communicates() const;
  void close_collectives(bool by_exception);
  Executor& activate(Executor& next);
  void require_nothing_live() const;
  void require_in_order(std::span<const UnitId> units, UseKind kind) const;
  void refuse_abandoned() const;
  void refuse_unfinished_evaluation() const;
  void begin_evaluation(std::span<const UnitId> units);
  bool is_replay_due() const;
  bool open_next_replay();
  bool in_replay_round() const;
  void begin_replay(ReplayProgress round);
  void end_replay_round();
  void skip_replay();
  bool compare_replay();
  [[noreturn]] void decide_replay();
  void require_equal_sums();
  void make_live(std::span<const UnitId> units, UseKind kind);
  void recompute(std::span<const UnitId> units);
  bool sends_result(const Operation& use) const;
  void skip_use();
  std::string graph_obstacle(Stream* compute) const;
  void agree_on_graph(Stream* compute);
  bool has_graph_in_this_step() const;
  void run_all_passes(const std::function<void()>& passes);
  void capture(const std::function<void()>& passes, std::unique_ptr<WorkGraph>& graph);
  std::unique_ptr<WorkGraph>& graph_of_step();
  [[noreturn]] void fail_capture(const std::exception_ptr& why);
  void repeat(WorkGraph& graph);
  void run_abandoned_graph();
  void end_step_of_graph();
  void skip_rest_of_passes();
  void finish_abandoned_passes();
  const Operation& next_operation() const { return active_->operation(active_->next()); }
  /// The kind of the use that comes next. A recompute counts as part of the backward after it.
  UseKind next_kind() const;
  UseKind kind_of(Verb verb) const;
  bool is_next(std::span<const UnitId> units) const;
  std::string unit_names(std::span<const UnitId> units) const;
  std::string next_use_text() const;

  World& world_;
  const EngineOptions& options_;
  const Recompute& recompute_;
  StepDecider& decider_;
  const std::shared_ptr<const Plan> plan_;
  const Plan evaluation_;
  const std::optional<Plan> replay_plan_;

  MeshGroups groups_;

  OffloadStores offload_stores_;
  HostView view_;
  Arena arena_;
  StepMemory memory_;

  ModelAddresses addresses_;
  Weights weights_;
  StateDigests digests_;
  Updater updater_;
  PointerBindings bindings_;
  ShardedState state_;

  std::unique_ptr<FaultInjector> faults_, replay_faults_;
  NonFiniteGradientDetector gradient_detector_;
  Executor executor_;
  SecondaryRun evaluation_run_;
  std::optional<SecondaryRun> replay_;  // the next three: only with Policy::replay_every
  std::optional<ReplayCheck> replay_check_;
  std::optional<SumCheck> sum_check_;
  std::optional<TimelineRecorder> recorder_;
  int64_t recorded_from_ = 0;
  LaneStreams lanes_;  // a stream for each lane that a plan uses

  bool captures_passes_ = false;    // run_passes() may capture
  bool called_run_passes_ = false;  // in this step, and it called its function
  bool ran_all_passes_ = false;     // run_passes() called its function in a step that no rank abandoned
  /// The captured passes: only the first one, or with a recorder one for each step of its marks. Null until captured.
  std::array<std::unique_ptr<WorkGraph>, TimelineRecorder::kSteps> graphs_;
  double graph_loss_scale_ = 1;  // the loss scale of `graphs_`
  bool captured_in_step_ = false;

  // Progress of the current step or evaluation.
  Executor* active_ = &executor_;
  int micro_batch_ = -1;            // index of the last micro-batch begun in this step; -1: none
  std::vector<UnitId> live_units_;  // units of the open scope
  UseMemory use_memory_;            // memory of the open scope
  OperationId open_code_ = -1;      // the operation of the open scope
  int32_t last_collective_ = -1;    // index of the last collective that the open scope has run; -1: none
  std::exception_ptr omission_;     // stored by close() if the scope omitted collectives
  std::vector<bool> recomputed_;    // for each use, whether its forward is repeated before its backward
  bool abandoned_ = false;          // the current step or evaluation is abandoned
  ReplayProgress replay_progress_ = ReplayProgress::kNone;
  bool replay_is_valid_ = true;                   // this rank has run all model code of the replay
  double replay_began_ = 0, replay_seconds_ = 0;  // in the current step
  bool in_evaluation_ = false;  // open_next_evaluation() has opened a use, and has not returned false since
  bool unusable_ = false;       // a failure was thrown, and the streams can no longer be used
  std::exception_ptr failure_;  // stored by close()
};

}  // namespace aliquot
