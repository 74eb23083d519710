#pragma once
// The loss scale of fp16 training, with DeepSpeed's names and meaning.

#include <cstdint>

#pragma GCC visibility push(default)
namespace aliquot {

struct LossScaling {
  double loss_scale = 0.0;  // 0: dynamic, what follows; else fixed
  int initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1.0;
};

/// Every rank holds one and tells it the same, so all agree without asking.
///
/// A step that overflowed uses up one of `hysteresis` chances; when the last is in use, the scale is halved, never
/// below min_loss_scale. After every loss_scale_window good steps since the last overflow it doubles and the chances
/// are whole again; with consecutive_hysteresis each good step makes them whole.
class LossScaler {
 public:
  /// What a checkpoint keeps.
  struct State {
    double scale = 1.0;
    int32_t chances = 1;
    int64_t good_steps = 0;  // since the last overflow

    friend bool operator==(const State&, const State&) = default;
  };

  /// A fixed scale of 1: what bf16 and fp32 use.
  LossScaler() : LossScaler(LossScaling{.loss_scale = 1.0}) {}
  /// Throws UsageError, naming the option, when one is out of its range.
  explicit LossScaler(const LossScaling& scaling);

  /// What the loss, and so every gradient of this step, is multiplied by.
  double scale() const { return state_.scale; }
  /// To be told once a step, skipped or not, after it.
  void step_done(bool overflowed);

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  LossScaling scaling_;
  State state_;
};

}  // namespace aliquot
#pragma GCC visibility pop
