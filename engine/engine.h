#pragma once
// The public face: a model says what it has and brackets what it does; the engine shards, gathers, reduces and updates.

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/options.h"
#include "engine/plan/schedule.h"
#include "engine/run/memory/pointer_slot.h"
#include "engine/scope.h"
#include "sharding/state.h"
#include "sharding/world.h"

#pragma GCC visibility push(default)
namespace aliquot {

class Session;
class StepDecider;

/// Is handed a parameter's values, the first of them number `first`; they stay until it returns.
using ValuesCallback = std::function<void(int64_t first, std::span<const float> values)>;
using TakeValues [[deprecated("use ValuesCallback")]] = ValuesCallback;

/// What is gathered together. Made by Engine::add_unit and owned by the engine.
class Unit {
 public:
  Unit(Engine& engine, UnitId index) : engine_(engine), index_(index) {}
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const;
  UnitId index() const { return index_; }

  /// Declares a parameter, full name "UNIT.NAME" (or NAME alone for a name that starts with '.', without the dot).
  /// `value` and `gradient` are where the model keeps its pointers, set while the unit is live, each of its own within the
  /// unit. They must outlive the engine; a gradient may have none where the parameter is not trainable. Throws UsageError,
  /// and declares nothing, for a shape with an extent below 1 or too many elements, for no pointer to the values, and for a
  /// pointer that the unit has already. Only before materialize().
  Unit& add(std::string_view name, std::vector<int64_t> shape, PointerSlot value, PointerSlot gradient,
            const ParameterOptions& options = {});
  /// Its gradient kernels write what they are handed instead of adding to zeros.
  Unit& assigns_gradients();

  /// Opens the use of this unit alone. Throws UsageError, naming what was expected, out of the declared order.
  [[nodiscard]] Scope forward();
  [[nodiscard]] Scope backward();
  /// Between steps: whole, in the order of forward, and nothing is kept for a backward. Every rank makes whole passes.
  [[nodiscard]] Scope evaluate();
  /// This rank does not run the unit's next use, forward or backward; gradients that it would have written are zeros.
  void skip();
  [[deprecated("use skip()")]] void pass_over() { skip(); }

 private:
  Engine& engine_;
  UnitId index_;
};

/// Collective: every rank makes the same calls in the same order, from its own thread. The world must outlive it.
/// Errors are aliquot::Error (kernels/system/error.h).
///
/// An exception that leaves a scope or a Pass abandons the step: the rank's next step(), without further micro-batches,
/// takes part in what the others still wait for, all ranks skip the update, and the step after is clean.
class Engine {
 public:
  Engine(World& world, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The order of use is the order of these calls unless declare_order() says another.
  Unit& add_unit(std::string name);
  std::deque<Unit>& units();
  /// Each use names the units that are whole together; units may come again. Only before plan() and materialize().
  void declare_order(std::vector<std::vector<UnitId>> uses);

  /// By use: what the model leaves for its backward, in memory of the engine's, which Scope::memory() then names; where
  /// ranks need different sizes, all are given the most. Of those
  /// declared recomputable, as many as EngineOptions::recompute says are run again by `recompute`. Before materialize().
  void declare_activations(ActivationSpec activations, Recompute recompute = {});

  /// What will run and what it costs, before anything is allocated. Valid until something more is declared.
  const Plan& plan();
  /// Allocates, checks that all ranks agree, and lets every rank make its own shards.
  void materialize(const Initialize& initialize);

  /// Begins a micro-batch. Throws UsageError if the one before was not finished.
  Pass micro_batch();
  /// Opens the next use, of one unit or of several together.
  [[nodiscard]] Scope forward(std::initializer_list<const Unit*> units);
  [[nodiscard]] Scope backward(std::initializer_list<const Unit*> units);
  [[nodiscard]] Scope evaluate(std::initializer_list<const Unit*> units);
  void skip(std::initializer_list<const Unit*> units);
  /// A number in a list would be taken for a null pointer: numbers come in a span.
  Scope forward(std::initializer_list<int> units) = delete;
  Scope backward(std::initializer_list<int> units) = delete;
  Scope evaluate(std::initializer_list<int> units) = delete;
  void skip(std::initializer_list<int> units) = delete;
  /// The same for units known by number while the program runs.
  [[nodiscard]] Scope forward(std::span<const UnitId> units) { return open(units, UseKind::kForward); }
  [[nodiscard]] Scope backward(std::span<const UnitId> units) { return open(units, UseKind::kBackward); }
  [[nodiscard]] Scope evaluate(std::span<const UnitId> units) { return open(units, UseKind::kEvaluate); }
  void skip(std::span<const UnitId> units);
  [[deprecated("use skip()")]] void pass_over(std::initializer_list<const Unit*> units) { skip(units); }
  [[deprecated("use skip()")]] void pass_over(std::span<const UnitId> units) { skip(units); }
  /// As an exception that leaves a scope or a Pass does: for one that came between them, or before the first micro-batch.
  void abandon();
  /// After the last micro-batch, or in an abandoned step at once: norm, clip, update, publish. A skipped step changed nothing,
  /// which its report says. Throws, the same on all ranks, when EngineOptions::max_skipped steps in a row were skipped:
  /// NotFiniteError if a gradient of the last one was not finite, or else FaultError. The step counts, and another may follow.
  [[nodiscard]] StepReport step();

  /// From the next step on, the same on every rank. Throws UsageError below 0, and for what is no number.
  void set_learning_rate(double rate);
  /// What the loss of this step is to be multiplied by: 1 but for fp16.
  double loss_scale() const;
  /// Steps taken, skipped ones counted; what a resumed run goes on from.
  int64_t step_count() const;
  /// Where the model's own kernels run: they are enqueued while their unit's scope lives. Only after materialize().
  Stream& compute_stream();
  /// On a GPU: the model's kernels run on a stream of its own (wrap_cuda_stream, lane compute), of the world's device.
  /// Before materialize().
  void compute_on(std::unique_ptr<Stream> stream);

  /// From the next step on, notes when each operation runs.
  void record_timelines();
  /// The step before the last: of this rank, and when its second 0 was on the steady clock. Between steps; waits for what
  /// is under way here. Empty before three steps were recorded.
  Timeline timeline(double* began = nullptr);

  /// Between steps: parameters whose names begin with `prefix` are trained from now on, or no longer. What was trained goes
  /// on from where it was; moments begin at zero, while bias corrections go on counting the run's steps, and of what is
  /// frozen the working copy alone is kept. The old memory and the new are both there for a moment. What is refused
  /// changes nothing.
  void set_trainable(std::string_view prefix, bool trainable);

  /// Everything a checkpoint holds, as this rank holds it: between steps only, valid until the next one. After pieces were
  /// overwritten, adopt() takes over the scalars and lets all ranks go on together.
  State state();
  void adopt(const State& state);
  /// Between steps: compares what several ranks hold of the same, whole parameters below stage 3, shards with replicas. Throws
  /// FaultError, the same on all ranks, naming the unit and the rank that differs: memory or arithmetic failed in silence.
  void check_copies();
  /// A whole parameter, by name, as its fp32 master, on every rank. Between steps. Collective.
  std::vector<float> read(std::string_view parameter);
  /// The same in bounded pieces, from the first element to the last, for what need not be in memory whole.
  void read(std::string_view parameter, const ValuesCallback& take);

  World& world() { return world_; }

 private:
  friend class Pass;
  friend class Scope;
  friend class Unit;
  struct UnitDeclaration {
    UnitSpec spec;
    std::vector<PointerSlots> slots;
  };

  ModelSpec model(const std::vector<UnitDeclaration>& declared) const;
  Plan make_plan(const std::vector<UnitDeclaration>& declared) const;
  std::string options_text() const;
  void check_agreement(const Plan& plan, const Plan& evaluation) const;
  /// The evaluation that goes with `plan`, when all ranks mean the same and both are proved.
  Plan agreed_evaluation(const Plan& plan) const;
  void refuse_if_materialized(std::string_view what) const;
  /// Throws UsageError where there is none yet.
  Session& session(std::string_view what) const;
  /// The same, between steps and at rest: `what` for the message of either refusal.
  Session& idle_session(std::string_view what, std::string_view call) const;
  std::unique_ptr<Session> make_session(Plan evaluation);
  void switch_session(std::vector<UnitDeclaration> declared, std::shared_ptr<const Plan> plan, Plan evaluation);
  Scope open(std::span<const UnitId> units, UseKind kind);

  World& world_;
  EngineOptions options_;
  std::vector<UnitDeclaration> declared_;
  std::deque<Unit> units_;
  std::vector<std::vector<UnitId>> uses_;
  ActivationSpec activations_;
  Recompute recompute_;
  std::shared_ptr<const Plan> plan_;        // of what is declared; null until it is asked for
  std::unique_ptr<Stream> compute_stream_;  // the user's, until the session has it
  std::unique_ptr<StepDecider> decider_;
  std::unique_ptr<Session> session_;  // refers to all above; null until materialize()
};

/// A range backwards: for (auto& unit : reversed(engine.units())).
template <typename Range>
auto reversed(Range& range) {
  struct Reversed {
    Range& range;
    auto begin() const { return range.rbegin(); }
    auto end() const { return range.rend(); }
  };
  return Reversed{range};
}

}  // namespace aliquot
#pragma GCC visibility pop
