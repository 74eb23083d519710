#pragma once
// Objects whose lifetime brackets what a model does.

#include <cstdint>
#include <exception>
#include <utility>

#include "engine/plan/activations.h"

#pragma GCC visibility push(default)
namespace aliquot {

class Engine;

/// Tells an end that was reached from one that an exception came by.
class Unwinding {
 public:
  bool now() const { return std::uncaught_exceptions() > before_; }

 private:
  int before_ = std::uncaught_exceptions();
};

/// What the model's code does while a scope lives.
enum class UseKind : uint8_t { kForward, kBackward, kEvaluate };

/// A unit is live, whole and at the model's own pointers, while this object lives. Move-only; closing it allocates nothing
/// and does not throw: what goes wrong on a stream is thrown by the next call of the engine.
class Scope {
 public:
  explicit Scope(Engine* engine) : engine_(engine) {}
  Scope(Scope&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), unwinding_(other.unwinding_) {}
  Scope& operator=(Scope&&) = delete;
  ~Scope();

  /// Where this use's activations lie, as they were declared to the engine. While the scope is open.
  UseMemory memory() const;

 private:
  Engine* engine_;
  Unwinding unwinding_;
};

/// One micro-batch, while this object lives; an exception that leaves it before its step was taken abandons that step.
/// Nothing else comes of it, so it need not be kept.
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
