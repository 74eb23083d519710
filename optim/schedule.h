#pragma once
// Learning rate schedules.

#include <cstdint>

namespace aliquot {

enum class RateShape : uint8_t { kConstant, kLinear, kCosine, kWsd, kInverseSqrt };
enum class RateScaling : uint8_t { kNone, kLinear, kSqrt };
enum class WarmupShape : uint8_t { kLinear, kLog };

/// The learning rate of step t, counted from 1. In the warm-up of N steps it rises from warmup_from to lr: the fraction
/// of the difference is t / N (kLinear) or log(t) / log(N) (kLog). Step N has the full rate. After it, with p = (t - N)
/// / (steps - N):
///   constant      lr
///   linear        lr + (min_lr - lr) * p
///   cosine        min_lr + (lr - min_lr) * (1 + cos(pi * p)) / 2
///   wsd           lr, then linear to min_lr over the last wsd_fraction of all steps, but never during the warm-up
///   inverse-sqrt  lr * sqrt(max(N, 1) / t), never below min_lr
/// Later steps have the rate of the last step.
struct RateSchedule {
  RateShape shape = RateShape::kCosine;
  double lr = 3e-4;
  double min_lr = 0.0;
  int64_t warmup_steps = 0;
  WarmupShape warmup_shape = WarmupShape::kLinear;
  double warmup_from = 0.0;
  int64_t steps = 1;
  double wsd_fraction = 0.1;  // the fraction of `steps` in which the rate of kWsd decays

  double rate(int64_t step) const;
};

/// Returns the learning rate for a batch size: lr, lr * batch / base_batch, or lr * sqrt(batch / base_batch). Scale
/// both lr and min_lr. Unless `scaling` is kNone, throws UsageError if a batch size is not positive.
double scaled_learning_rate(double lr, RateScaling scaling, int64_t batch, int64_t base_batch);

}  // namespace aliquot
