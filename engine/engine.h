#pragma once
// The public face: a model says what it has and brackets what it does; the engine shards, gathers, reduces and updates.

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/policy.h"
#include "engine/schedule.h"
#include "optim/optimizer.h"
#include "sharding/state.h"
#include "sharding/world.h"

namespace aliquot {

class Engine;

struct EngineOptions {
  int zero_stage = 3;
  int accumulate = 1;  // micro-batches a step
  AccumulateInto accumulate_into = AccumulateInto::kAuto;
  int prefetch = 1;
  int keep_gathered = 0;
  GatherMode gather = GatherMode::kAuto;
  Optimizer optimizer = AdamW{};
  double clip = 1.0;  // by the global norm; 0: off
  uint64_t seed = 1;  // of stochastic rounding
};

struct ParameterOptions {
  bool trainable = true;
  bool decayed = true;
  float lr_scale = 1.0f;
};

/// A unit is live, whole and at the model's own pointers, while this object lives. Move-only; closing it allocates nothing
/// and does not throw: what goes wrong on a stream is thrown by the next call of the engine.
class Scope {
 public:
  explicit Scope(Engine* engine) : engine_(engine) {}
  Scope(Scope&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  Scope& operator=(Scope&&) = delete;
  ~Scope();

 private:
  Engine* engine_;
};

/// What is gathered together. Made by Engine::add_unit and owned by the engine.
class Unit {
 public:
  Unit(Engine& engine, UnitId index) : engine_(engine), index_(index) {}
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const std::string& name() const;
  UnitId index() const { return index_; }

  /// Declares a parameter, full name "UNIT.NAME" (or NAME alone for a name that starts with '.', without the dot).
  /// `value` and `gradient` are where the model keeps its pointers, set while the unit is live; either may be null. They
  /// must outlive the engine. Only before materialize().
  Unit& add(std::string_view name, std::vector<int64_t> shape, float** value, float** gradient,
            const ParameterOptions& options = {});
  /// Its gradient kernels write what they are handed instead of adding to zeros.
  Unit& assigns_gradients();

  /// Opens the use of this unit alone. Throws UsageError, naming what was expected, out of the declared order.
  [[nodiscard]] Scope forward();
  [[nodiscard]] Scope backward();

 private:
  Engine& engine_;
  UnitId index_;
};

struct StepReport {
  int64_t step = 0;          // from 1, skipped ones counted
  double gradient_norm = 0;  // before clipping, of the mean over ranks and micro-batches
  double learning_rate = 0;
  bool skipped = false;          // a gradient was not finite; nothing was changed
  std::string first_not_finite;  // the first such parameter, by name
};

/// Fills `values` with the initial values of elements [offset, offset + values.size()) of the parameter. Called for the
/// parts that this rank holds; must give the same value for an element on every rank.
using Initialize = std::function<void(const ParameterSpec& parameter, int64_t offset, std::span<float> values)>;

/// Collective: every rank makes the same calls in the same order, from its own thread. The world must outlive it.
/// Errors are aliquot::Error (kernels/error.h). Computes on hosts in this version, in fp32.
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

  /// What will run and what it costs, before anything is allocated. Valid until something more is declared.
  const Plan& plan();
  /// Allocates, checks that all ranks agree, and lets every rank make its own shards.
  void materialize(const Initialize& initialize);

  /// Begins a micro-batch. Throws UsageError if the one before was not finished.
  void micro_batch();
  /// Opens the next use, of one unit or of several together.
  [[nodiscard]] Scope forward(std::initializer_list<const Unit*> units);
  [[nodiscard]] Scope backward(std::initializer_list<const Unit*> units);
  /// After the last micro-batch: norm, clip, update, publish.
  StepReport step();

  void set_learning_rate(double rate) { learning_rate_ = rate; }
  /// Steps taken, skipped ones counted; what a resumed run goes on from.
  int64_t step_count() const { return step_count_; }

  /// Everything a checkpoint holds, as this rank holds it: between steps only, valid until the next one. After pieces were
  /// overwritten, adopt() takes over the scalars and lets all ranks go on together.
  State state();
  void adopt(const State& state);
  /// A whole parameter, by name, on every rank.
  std::vector<float> read(std::string_view parameter);

  World& world() { return world_; }

 private:
  friend class Scope;
  friend class Unit;
  struct Running;
  struct Declared {
    UnitSpec spec;
    std::vector<struct PointerSlots> slots;
  };

  Scope open(std::span<const UnitId> units, bool backward);
  void close();
  void refuse_if_running(std::string_view what) const;
  std::string use_text(const Operation& operation) const;
  void agree();
  void prove() const;
  void initialize_parameters(const Initialize& initialize);

  World& world_;
  EngineOptions options_;
  std::vector<Declared> declared_;
  std::deque<Unit> units_;
  std::vector<std::vector<UnitId>> uses_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<Running> running_;
  double learning_rate_;
  int64_t step_count_ = 0;    // taken or skipped
  int64_t update_count_ = 0;  // taken
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
