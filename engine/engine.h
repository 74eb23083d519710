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

class TensorStream;

/// Is handed a parameter's values, the first of them number `first`; they stay until it returns.
using TakeValues = std::function<void(int64_t first, std::span<const float> values)>;

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
  void pass_over();

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
  void pass_over(std::initializer_list<const Unit*> units);
  /// A number in a list would be taken for a null pointer: numbers come in a span.
  Scope forward(std::initializer_list<int> units) = delete;
  Scope backward(std::initializer_list<int> units) = delete;
  Scope evaluate(std::initializer_list<int> units) = delete;
  void pass_over(std::initializer_list<int> units) = delete;
  /// The same for units known by number while the program runs.
  [[nodiscard]] Scope forward(std::span<const UnitId> units) { return open(units, Use::kForward); }
  [[nodiscard]] Scope backward(std::span<const UnitId> units) { return open(units, Use::kBackward); }
  [[nodiscard]] Scope evaluate(std::span<const UnitId> units) { return open(units, Use::kEvaluate); }
  void pass_over(std::span<const UnitId> units);
  /// As an exception that leaves a scope or a Pass does: for one that came between them, or before the first micro-batch.
  void abandon();
  /// After the last micro-batch, or in an abandoned step at once: norm, clip, update, publish. A skipped step changed nothing,
  /// which its report says. Throws, the same on all ranks, when EngineOptions::max_skipped steps in a row were skipped:
  /// NotFiniteError if a gradient of the last one was not finite, or else FaultError. The step counts, and another may follow.
  [[nodiscard]] StepReport step();

  /// From the next step on, the same on every rank. Throws UsageError below 0, and for what is no number.
  void set_learning_rate(double rate);
  /// What the loss of this step is to be multiplied by: 1 but for fp16.
  double loss_scale() const { return scaler_.scale(); }
  /// Steps taken, skipped ones counted; what a resumed run goes on from.
  int64_t step_count() const { return step_count_; }
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
  void read(std::string_view parameter, const TakeValues& take);

  World& world() { return world_; }

 private:
  friend class Pass;
  friend class Scope;
  friend class Unit;
  struct Running;
  struct Declared {
    UnitSpec spec;
    std::vector<PointerSlots> slots;
  };
  enum class Use : uint8_t { kForward, kBackward, kEvaluate };
  static std::string_view name(Use use);

  ModelSpec model(const std::vector<Declared>& declared) const;
  Scope open(std::span<const UnitId> units, Use use);
  void make_live(std::span<const UnitId> units, Use use);
  void recompute(std::span<const UnitId> units);
  UseMemory use_memory() const;
  void close(bool by_exception) noexcept;
  void abandon_pass(int64_t step) noexcept;
  void begin_evaluation(std::span<const UnitId> units);
  void note_skipped(const StepReport& report);
  Running& running(std::string_view what) const;
  void refuse_if_running(std::string_view what) const;
  std::string use_text(const Operation& operation) const;
  void refuse_unfinished_evaluation() const;
  std::string unit_names(std::span<const UnitId> units) const;
  Plan make_plan(const std::vector<Declared>& declared) const;
  std::string choices() const;
  void agree(const Plan& plan, const Plan& evaluation) const;
  /// The evaluation that goes with `plan`, when all ranks mean the same and both are proved.
  Plan agreed_evaluation(const Plan& plan) const;
  void make_running(const Plan& evaluation);
  void replace(std::vector<Declared> declared, std::unique_ptr<Plan> plan, const Plan& evaluation, const State& before);
  void initialize_parameters(const Initialize& initialize);
  void clear_masters_and_state();
  int saving_rank() const;
  StateTensor parameter_state(int32_t flat, int32_t tensor) const;
  std::optional<StateTensor> parameter_state(std::string_view parameter) const;
  void add_state(State& state, int32_t flat, int32_t tensor) const;
  TensorStream tensor_stream() const;

  World& world_;
  EngineOptions options_;
  std::vector<Declared> declared_;
  std::deque<Unit> units_;
  std::vector<std::vector<UnitId>> uses_;
  ActivationSpec activations_;
  Recompute recompute_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<Stream> compute_stream_;  // the user's, until it is one of the lanes
  LossScaler scaler_;
  double learning_rate_ = 0;
  int64_t step_count_ = 0;    // taken or skipped
  int64_t update_count_ = 0;  // taken
  int skipped_in_a_row_ = 0;
  std::unique_ptr<Running> running_;
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
