#pragma once
// The loss scale of fp16 training. The options have the same names and meanings as in DeepSpeed.

#include <cstdint>

#pragma GCC visibility push(default)
namespace aliquot {

struct LossScaling {
  double loss_scale = 0.0;  // the fixed scale, or 0 for dynamic scaling, which the other options configure
  int initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1.0;
};

/// Computes the loss scale. Every rank has a LossScaler and calls step_done() with the same results, so all ranks have
/// the same scale without communication.
///
/// State::chances begins at `hysteresis`. While it is above 1, each step that overflows decrements it. When it is 1,
/// each overflow halves the scale, but not below min_loss_scale. After each loss_scale_window consecutive steps without
/// overflow, the scale doubles and `chances` is reset to `hysteresis`. With consecutive_hysteresis, every step without
/// overflow resets `chances`.
class LossScaler {
 public:
  /// The state that checkpoints contain.
  struct State {
    double scale = 1.0;
    int32_t chances = 1;     // number of overflows that are needed to halve the scale
    int64_t good_steps = 0;  // number of steps since the last overflow

    friend bool operator==(const State&, const State&) = default;
  };

  /// Has a fixed scale of 1, for bf16 and fp32.
  LossScaler() : LossScaler(LossScaling{.loss_scale = 1.0}) {}
  /// Throws UsageError with the name of the option if an option is out of range.
  explicit LossScaler(const LossScaling& scaling);

  /// The factor by which the loss, and therefore every gradient, is multiplied in this step.
  double scale() const { return state_.scale; }
  /// Must be called once after each step, including skipped steps.
  void step_done(bool overflowed);

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  LossScaling scaling_;
  State state_;
};

}  // namespace aliquot
#pragma GCC visibility pop
