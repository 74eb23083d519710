#pragma once
// The engine: a model declares its parameters and encloses its forward and backward code in scopes. The engine shards,
// gathers, reduces and updates the parameters.

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

/// Receives consecutive values of a parameter. `first` is the index of values[0]. The span is valid during the call.
using ValuesCallback = std::function<void(int64_t first, std::span<const float> values)>;
using TakeValues [[deprecated("use ValuesCallback")]] = ValuesCallback;

/// A set of parameters that is gathered, reduced and updated together. Engine::add_unit() creates it, and the engine
/// owns it.
class Unit {
 public:
  Unit(Engine& engine, UnitId index) : engine_(engine), index_(index) {}
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const;
  UnitId index() const { return index_; }

  /// Declares a parameter. Its full name is "UNIT.NAME"; if `name` starts with '.', it is `name` without the dot.
  /// `value` and `gradient` are the addresses of two pointers of the model. The engine sets these pointers while a
  /// scope of the unit is open. They must outlive the engine. `gradient` may be empty if the parameter is not
  /// trainable. slice() makes an address in an array of several layers, and view_slot() that of a view.
  ///
  /// Units that are not used together may have the same pointer: it then leads to the parameter of the open unit.
  /// After a scope, an access through this pointer is attributed to the unit that was open last. Units of one use may
  /// not: materialize() throws UsageError.
  ///
  /// Throws UsageError, and declares nothing, if an extent is below 1, the shape has too many elements, `value` is
  /// empty, or another parameter of the unit uses the same pointer. Call before materialize().
  Unit& add(std::string_view name, std::vector<int64_t> shape, PointerSlot value, PointerSlot gradient,
            const ParameterOptions& options = {});
  /// Declares that the unit's gradient kernels overwrite the gradient memory. By default they add to it, and the engine
  /// clears it first.
  Unit& assigns_gradients();

  /// Opens the next use, which must contain this unit only. Throws UsageError, naming the expected use, if another use
  /// is next in the declared order.
  [[nodiscard]] Scope forward();
  [[nodiscard]] Scope backward();
  /// Opens the next use of an evaluation. An evaluation is a forward pass between steps that saves nothing for
  /// backward. Every rank must run the complete pass, in the declared order.
  [[nodiscard]] Scope evaluate();
  /// Skips the unit's next use, forward or backward, on this rank. The rank contributes zeros to the gradients. Throws
  /// UsageError if another pipeline stage receives the result of the use.
  void skip();
  [[deprecated("use skip()")]] void pass_over();

 private:
  Engine& engine_;
  UnitId index_;
};

/// Trains a declared model on all ranks of a world. Collective: every rank makes the same calls in the same order, each
/// rank from its own thread. The world must outlive the engine. Errors derive from aliquot::Error
/// (kernels/system/error.h).
///
/// If an exception leaves a Scope or a Pass, the rank abandons the step. It must then call step() without further
/// micro-batches. The call completes the collectives that other ranks wait for. All ranks skip the update, and the next
/// step starts normally.
class Engine {
 public:
  Engine(World& world, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Declares a unit. By default, the order of these calls is also the order in which forward uses the units.
  /// declare_order() sets another order.
  Unit& add_unit(std::string name);
  std::deque<Unit>& units();
  /// Sets the order of forward. Each element of `uses` lists units that are gathered at the same time. A unit may have
  /// several uses. Call before plan() and materialize().
  void declare_order(std::vector<std::vector<UnitId>> uses);

  /// Declares how much activation memory each use needs. The engine allocates this memory, and Scope::memory() returns
  /// its addresses. If ranks declare different sizes, all ranks use the largest. `recompute` repeats the forward of a
  /// recomputable use. EngineOptions::recompute sets the number of recomputed uses. Collective. Call before
  /// materialize().
  void declare_activations(ActivationSpec activations, Recompute recompute = {});

  /// Returns the plan for the declared model. Can be called before materialize(), which allocates memory. The reference
  /// is valid until the next declaration.
  const Plan& plan();
  /// Returns the plans of all pipeline stages, in order. plan() returns the plan of this rank's stage.
  const std::vector<Plan>& pipeline_plans();
  /// Checks that all ranks have the same plan and options, allocates memory, and initializes the shards of each rank.
  void materialize(const Initialize& initialize);

  /// Opens the next use of the step, in the planned order of passes. Returns nullopt after the last one: then call
  /// step(). Close the returned Work, by its destruction, before the next call. Replaces micro_batch(), forward() and
  /// backward(), and may be mixed with them. If an exception is thrown while no Work is open, call abandon(), so that
  /// the step can be completed.
  [[nodiscard]] std::optional<Work> next();
  /// With EngineOptions::replay_every, compares the loss of micro-batch 0 too. Call with the loss of micro-batch 0 of
  /// this step, and, with `replayed`, with the loss of uses with Work::replayed. Has no effect in other steps. Call
  /// before next() returns nullopt.
  void compare_loss(double loss, bool replayed);
  /// Opens the next use of an evaluation, a forward pass between steps that saves nothing for backward. Returns nullopt
  /// after the last use. The next call then begins another evaluation.
  [[nodiscard]] std::optional<Work> next_evaluation();
  /// Runs all passes of a step: calls `passes`, which must run every use, as without this call. Then call step(). A GPU
  /// may repeat the passes as a CUDA graph, which saves time of the host. **From the third step on, `passes` is then
  /// not called.** The first step runs `passes`, and the second step captures its work.
  ///
  /// So `passes` must enqueue the same work in each step, with the same arguments: data that differs, such as samples,
  /// must be copied to the same device memory before the call. It must not wait for the device, allocate its memory, or
  /// enqueue host functions. Results that it wrote to fixed addresses can be read when the compute stream has run. If
  /// loss_scale() changes, or after set_trainable(), the work is captured again. If `passes` throws or omits
  /// a use, the step is abandoned.
  ///
  /// Without a graph, `passes` is called in each step: see EngineOptions::graph and docs/engine.md, "Graphs". All ranks
  /// must use run_passes(), or none.
  void run_passes(const std::function<void()>& passes);
  /// Whether run_passes() repeats the passes as a graph, except in the steps that docs/engine.md lists. Call after
  /// materialize().
  bool uses_graph() const;
  /// The data coordinate whose samples this rank reads: see Work::data_coordinate. Call after materialize().
  int data_coordinate() const;
  /// Begins a micro-batch. Throws UsageError if the previous micro-batch is not finished.
  Pass micro_batch();
  /// Opens the next use, which must contain exactly these units.
  [[nodiscard]] Scope forward(std::initializer_list<const Unit*> units);
  [[nodiscard]] Scope backward(std::initializer_list<const Unit*> units);
  [[nodiscard]] Scope evaluate(std::initializer_list<const Unit*> units);
  void skip(std::initializer_list<const Unit*> units);
  /// Deleted because {0} would convert to a null pointer. Pass unit ids in a span.
  Scope forward(std::initializer_list<int> units) = delete;
  Scope backward(std::initializer_list<int> units) = delete;
  Scope evaluate(std::initializer_list<int> units) = delete;
  void skip(std::initializer_list<int> units) = delete;
  /// Overloads that take unit ids.
  [[nodiscard]] Scope forward(std::span<const UnitId> units) { return open(units, UseKind::kForward); }
  [[nodiscard]] Scope backward(std::span<const UnitId> units) { return open(units, UseKind::kBackward); }
  [[nodiscard]] Scope evaluate(std::span<const UnitId> units) { return open(units, UseKind::kEvaluate); }
  void skip(std::span<const UnitId> units);
  [[deprecated("use skip()")]] void pass_over(std::initializer_list<const Unit*> units);
  [[deprecated("use skip()")]] void pass_over(std::span<const UnitId> units);
  /// Abandons the step, as an exception that leaves a Scope or a Pass does. Call it after an error outside of scopes or
  /// before the first micro-batch.
  void abandon();
  /// Ends the step after its last micro-batch, or after it was abandoned: computes the norm, clips, updates and
  /// all-gathers parameters. A skipped step changes nothing, and StepReport::skipped is true. If
  /// EngineOptions::max_skipped steps in a row were skipped, throws on all ranks: NotFiniteError if a gradient of the
  /// last step was not finite, otherwise FaultError. That step is counted, and training may continue with another step.
  [[nodiscard]] StepReport step();

  /// Replaces each value, for example a loss, by its sum over the ranks of the last pipeline stage, on all ranks.
  /// Ignores the values of other stages. Accepts at most Communicator::kSmallCount values in host memory. Collective;
  /// blocks. Call between steps, or after the last pass of a step.
  void sum_losses(std::span<double> values);
  /// Sets the learning rate that applies from the next step on. Must be the same on every rank. Throws UsageError
  /// unless 0 <= rate < 1e30.
  void set_learning_rate(double rate);
  /// The factor by which the model must multiply the loss of this step. 1 unless the model computes in fp16.
  double loss_scale() const;
  /// The number of finished steps, including skipped ones. A checkpoint restores it.
  int64_t step_count() const;
  /// The stream on which the model must enqueue its kernels while a scope is open. Call after materialize().
  Stream& compute_stream();
  /// Sets the stream for the model's kernels, for example a CUDA stream from wrap_cuda_stream(). The stream must belong
  /// to the world's device and have lane kCompute. Call before materialize().
  void compute_on(std::unique_ptr<Stream> stream);

  /// From the next step on, records the times at which each operation begins and ends. With a graph, call it on all
  /// ranks between the same steps.
  void record_timelines();
  /// Returns this rank's timeline of the second-to-last step, or an empty timeline before three steps were recorded.
  /// `began`, if not null, receives the steady-clock time of second 0 of the timeline. Call between steps; waits for
  /// this rank's streams.
  Timeline timeline(double* began = nullptr);

  /// Unfreezes or freezes the parameters whose names begin with `prefix`. Call between steps. Parameters that stay
  /// trainable keep their optimizer state. Newly trainable ones start with zero moments; the update count for bias
  /// correction continues. Frozen ones keep only their working copy. Old and new memory exist at the same time during
  /// the call. If it throws, the engine is unchanged.
  void set_trainable(std::string_view prefix, bool trainable);

  /// The state that a checkpoint saves: scalars, and this rank's pieces of all tensors. Call between steps. The result
  /// is valid until the next step. To load a state, overwrite the pieces and then call adopt() with the loaded scalars.
  State state();
  void adopt(const State& state);
  /// Compares data that several ranks hold: full parameters below ZeRO stage 3, and shards if there are replicas. Call
  /// between steps. If copies differ (silent data corruption), throws the same FaultError on all ranks, which names the
  /// unit and the ranks.
  void check_copies();
  /// Returns a full parameter as fp32 master values, on every rank. Collective. Call between steps.
  std::vector<float> read(std::string_view parameter);
  /// Passes the fp32 master values of a full parameter to `take`, on every rank. Each call of `take` gets a chunk of
  /// bounded size, from the first element to the last. Collective. Call between steps.
  void read(std::string_view parameter, const ValuesCallback& take);

  World& world() { return world_; }
  /// The options that the constructor received.
  const EngineOptions& options() const { return options_; }

 private:
  friend class Pass;
  friend class Scope;
  friend class Unit;
  struct UnitDeclaration {
    UnitSpec spec;
    std::vector<PointerSlots> slots;
  };

  ModelSpec model(const std::vector<UnitDeclaration>& declared) const;
  std::shared_ptr<const std::vector<Plan>> make_plans(const std::vector<UnitDeclaration>& declared) const;
  std::size_t own_stage() const;
  std::string options_text() const;
  /// The plans of this rank's stage that use the memory of the training plan.
  struct SecondaryPlans {
    Plan evaluation;
    std::optional<Plan> replay;
  };
  void check_agreement(const std::vector<Plan>& stages, const std::vector<Plan>& others) const;
  /// Checks that all ranks agree on the plans of all stages and on the secondary plans, and validates them.
  SecondaryPlans agreed_plans(const std::vector<Plan>& stages) const;
  void refuse_with_replays(std::string_view call) const;
  void refuse_if_materialized(std::string_view what) const;
  /// Throws UsageError, naming `call`, if materialize() was not called.
  Session& session(std::string_view call) const;
  /// Like session(), but also throws UsageError during a step, and waits until this rank's streams are idle.
  Session& idle_session(std::string_view call) const;
  std::unique_ptr<Session> make_session(SecondaryPlans others);
  void switch_session(std::vector<UnitDeclaration> declared, std::shared_ptr<const std::vector<Plan>> stages,
                      SecondaryPlans others);
  Scope open(std::span<const UnitId> units, UseKind kind);

  World& world_;
  EngineOptions options_;
  std::vector<UnitDeclaration> declared_;
  std::deque<Unit> units_;
  std::vector<std::vector<UnitId>> uses_;
  ActivationSpec activations_;
  Recompute recompute_;
  std::shared_ptr<const std::vector<Plan>> stages_;  // null until plan() is called, and after each declaration
  std::unique_ptr<Stream> compute_stream_;           // from compute_on(); moved into the session by materialize()
  std::unique_ptr<StepDecider> decider_;
  std::unique_ptr<Session> session_;  // refers to the members above; null until materialize()
};

/// Iterates a range in reverse order: for (auto& unit : reversed(engine.units())).
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
