#pragma once
// A materialized engine: the memory of a plan, what runs in it, and how far the step has come.

#include <exception>
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
#include "engine/scope.h"
#include "engine/sharded_state.h"
#include "engine/step_decider.h"

namespace aliquot {

/// Runs one plan from materialize() or set_trainable() on, until another session takes over. Made collectively; used from
/// the rank's own thread. Everything given by reference must outlive it.
///
/// It owns all that the plan needs, in layers: groups; memory (arena and homes); views of that memory (weights, updater,
/// bindings); executors. A layer refers to those before it, so members are destroyed in reverse. The streams go first:
/// destroying one waits for its work, which uses all the rest.
class Session {
 public:
  struct Parts {
    World& world;
    const EngineOptions& options;
    const Recompute& recompute;
    StepDecider& decider;
    std::shared_ptr<const Plan> plan;
    Plan evaluation;
    std::vector<std::vector<PointerSlots>> slots;  // by unit, then parameter
    std::unique_ptr<Stream>& compute_stream;       // the user's, if there is one: taken when all else has been made
  };
  explicit Session(Parts parts);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// To be called first by every call of the engine: throws what closing a scope could not, and ends an evaluation that
  /// an exception left.
  void finish_pending();

  // A step: micro-batches, each of which opens and closes every use, then step(). All throw UsageError out of order.
  void begin_micro_batch();
  void open(std::span<const UnitId> units, UseKind kind);
  /// What goes wrong is thrown by finish_pending().
  void close(bool by_exception) noexcept;
  void skip(std::span<const UnitId> units);
  const UseMemory& use_memory() const { return use_memory_; }
  StepReport step();
  /// This rank takes no part in the update: all ranks skip it.
  void abandon();
  /// The same for an exception that left a micro-batch of that step, unless it was taken since.
  void abandon_micro_batch(int64_t step) noexcept;

  /// Throws UsageError, naming what was asked for, unless nothing is under way: no step, no evaluation, no live unit.
  void require_between_steps(std::string_view what) const;
  /// Waits for everything that this rank has enqueued.
  void wait_until_idle() const;
  /// Between steps, at rest.
  const ShardedState& state() const { return state_; }

  Stream& compute_stream() { return executor_.stream(Lane::kCompute); }
  /// Another session may take the stream of the model's code; until it is back nothing runs here.
  std::unique_ptr<Stream> release_compute_stream();
  /// The stream is back, and the model's pointers are this session's.
  void resume(std::unique_ptr<Stream> compute_stream);
  /// The model's pointers are this session's.
  void guard_pointers() { bindings_.guard_all(); }

  /// From the next step on, notes when each operation runs.
  void record_timelines();
  bool is_recording() const { return recorder_.has_value(); }
  /// As Engine::timeline().
  Timeline timeline(double* began);

 private:
  StepMemory::Parts memory_of(const Plan& plan) const;
  Executor::Parts executor_of(const Plan& plan, StepMemory& memory);
  void make_lane(Lane lane);
  std::unique_ptr<Stream>& compute_lane() { return lanes_[static_cast<std::size_t>(Lane::kCompute)]; }

  bool evaluates() const { return active_ == &evaluator_; }
  Executor& activate(Executor& next);
  void require_nothing_live() const;
  void require_in_order(std::span<const UnitId> units, UseKind kind) const;
  void refuse_abandoned() const;
  void refuse_unfinished_evaluation() const;
  void begin_evaluation(std::span<const UnitId> units);
  void make_live(std::span<const UnitId> units, UseKind kind);
  void recompute(std::span<const UnitId> units);
  void skip_use();
  void skip_rest_of_passes();
  const Operation& next_operation() const { return active_->operation(active_->next()); }
  bool is_next(std::span<const UnitId> units) const;
  std::string unit_names(std::span<const UnitId> units) const;
  std::string use_text(const Operation& operation) const;

  World& world_;
  const EngineOptions& options_;
  const Recompute& recompute_;
  StepDecider& decider_;
  const std::shared_ptr<const Plan> plan_;
  const Plan evaluation_;

  ReplicaGroups groups_;

  OffloadStores offload_stores_;
  HostView view_;
  Arena arena_;
  StepMemory memory_, evaluation_memory_;

  ModelAddresses addresses_, evaluation_addresses_;
  Weights weights_;
  Updater updater_;
  PointerBindings bindings_;
  ShardedState state_;

  std::unique_ptr<FaultInjector> faults_;
  NonFiniteGradientDetector gradient_detector_;
  Executor executor_, evaluator_;
  std::optional<TimelineRecorder> recorder_;
  int64_t recorded_from_ = 0;
  LaneStreams lanes_;  // one for every lane of either plan

  // How far the step has come.
  Executor* active_ = &executor_;
  int micro_batch_ = -1;            // begun, of this step
  std::vector<UnitId> live_units_;  // of the scope that is open
  UseMemory use_memory_;            // of it, too
  std::vector<bool> recomputed_;    // by use
  bool abandoned_ = false;          // an exception left this step, or this evaluation
  bool unusable_ = false;           // a failure was thrown: its streams are of no use any more
  std::exception_ptr failure_;      // of closing a scope
};

}  // namespace aliquot
