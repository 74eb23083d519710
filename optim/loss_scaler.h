#pragma once
// The loss scale of fp16 training. Options have the names and the meaning of DeepSpeed's.

#include <cstdint>

#pragma GCC visibility push(default)
namespace aliquot {

struct LossScaling {
  double loss_scale = 0.0;  // fixed scale; 0 selects dynamic scaling, to which the other options apply
  int initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1.0;
};

/// Computes the loss scale. Every rank has one and reports the same steps to it, so all have the same scale without
/// communication.
///
/// While more than one of the `hysteresis` chances is left, a step that overflows uses one. With one chance left, each
/// overflow halves the scale, but not below min_loss_scale. After each loss_scale_window consecutive steps without
/// overflow, the scale doubles and the number of chances is reset. With consecutive_hysteresis each such step resets
/// it.
class LossScaler {
 public:
  /// The state that checkpoints contain.
  struct State {
    double scale = 1.0;
    int32_t chances = 1;     // overflows until the scale is halved
    int64_t good_steps = 0;  // since the last overflow

    friend bool operator==(const State&, const State&) = default;
  };

  /// A fixed scale of 1, for bf16 and fp32.
  LossScaler() : LossScaler(LossScaling{.loss_scale = 1.0}) {}
  /// Throws UsageError, with the name of the option, if one is out of range.
  explicit LossScaler(const LossScaling& scaling);

  /// The factor of the loss, and therefore of all gradients, in this step.
  double scale() const { return state_.scale; }
  /// Call it once after each step, including skipped steps.
  void step_done(bool overflowed);

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  LossScaling scaling_;
  State state_;
};

}  // namespace aliquot
#pragma GCC visibility pop
