#pragma once
// RAII objects: Scope encloses the model's code in one use, Pass encloses one micro-batch.

#include <cstdint>
#include <exception>
#include <span>
#include <string_view>
#include <utility>

#include "engine/plan/activations.h"

#pragma GCC visibility push(default)
namespace aliquot {

class Engine;

/// Detects whether an object is being destroyed because of an exception that was thrown after its construction.
class Unwinding {
 public:
  bool now() const { return std::uncaught_exceptions() > before_; }

 private:
  int before_ = std::uncaught_exceptions();
};

/// The kind of model code that runs while a scope is open. The last two are the parts of a split backward
/// (UseActivations::splits_backward), which only Engine::next() opens. Between them, passes of other micro-batches may
/// run, which overwrite `scratch`.
enum class UseKind : uint8_t {
  kForward,
  kBackward,
  kEvaluate,
  /// Computes the gradients of activations, and writes to UseMemory::weight_inputs what the second part needs. The
  /// pointers to gradients of parameters are invalid.
  kBackwardInput,
  /// Computes the gradients of parameters from `input` (if UseActivations::input_in_backward), `kept` and
  /// `weight_inputs`. The pointers to values of parameters are invalid.
  kBackwardWeights,
};

/// While this object exists, the full parameters of its units are accessible through the model's pointers. Move-only.
/// The destructor neither allocates nor throws. The next call of the engine throws errors that occurred on a stream.
class Scope {
 public:
  explicit Scope(Engine* engine) : engine_(engine) {}
  Scope(Scope&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), unwinding_(other.unwinding_) {}
  Scope& operator=(Scope&&) = delete;
  ~Scope();

  /// Addresses of the activation memory declared for this use. Valid while the scope is open.
  UseMemory memory() const;
  /// Runs the next declared collective of the use. See UseMemory::run().
  void run(std::string_view collective) const { memory().run(collective); }

 private:
  Engine* engine_;
  Unwinding unwinding_;
};

/// One use that the engine asks the model to run, from Engine::next(). Its Scope is open until the Work is destroyed.
struct Work {
  UseKind kind = UseKind::kForward;
  int32_t use = 0;             // index in the declared order
  int32_t micro_batch = 0;     // index in the step, from 0
  std::span<const int> units;  // ids of the units of the use
  Scope scope;
  /// The data coordinate whose samples the model must use: that of this rank, unless `replayed`. It is the index of a
  /// rank among those that read different samples: replica * ranks of a shard group + rank in the shard group.
  int32_t data_coordinate = 0;
  /// Whether this use repeats micro-batch 0 of `data_coordinate` (EngineOptions::replay_every). The model must use the
  /// same samples and random numbers as that coordinate. Its loss does not count.
  bool replayed = false;

  UseMemory memory() const { return scope.memory(); }
  void run(std::string_view collective) const { scope.run(collective); }
};

/// Represents one micro-batch. If an exception destroys the object before step() has run, the step is abandoned. The
/// object has no other effect, so a caller that needs no exception handling may discard it.
class Pass {
 public:
  Pass(Engine* engine, int64_t step) : engine_(engine), step_(step) {}
  Pass(Pass&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)), step_(other.step_), unwinding_(other.unwinding_) {}
  Pass& operator=(Pass&&) = delete;
  ~Pass();

 private:
  Engine* engine_;
  int64_t step_;
  Unwinding unwinding_;
};

}  // namespace aliquot
#pragma GCC visibility pop
