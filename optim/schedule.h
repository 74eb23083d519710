#pragma once
// The learning rate over the steps.

#include <cstdint>

namespace aliquot {

enum class RateShape : uint8_t { kConstant, kLinear, kCosine, kWsd, kInverseSqrt };
enum class RateScaling : uint8_t { kNone, kLinear, kSqrt };
enum class WarmupShape : uint8_t { kLinear, kLog };

/// The rate of each step, counted from 1. In the warm-up of N steps it is lr * t / N, or lr * log(t) / log(N), of the way
/// from warmup_from if that is not 0; step N has the full rate. After it, with p = (t - N) / (steps - N):
///   constant      lr
///   linear        lr + (min_lr - lr) * p
///   cosine        min_lr + (lr - min_lr) * (1 + cos(pi * p)) / 2
///   wsd           lr, then in a straight line to min_lr over the last tenth of all steps (or what the warm-up leaves)
///   inverse-sqrt  lr * sqrt(max(N, 1) / t), never below min_lr
/// Steps beyond the last have the last one's rate.
struct RateSchedule {
  RateShape shape = RateShape::kCosine;
  double lr = 3e-4;
  double min_lr = 0.0;
  int64_t warmup_steps = 0;
  WarmupShape warmup_shape = WarmupShape::kLinear;
  double warmup_from = 0.0;
  int64_t steps = 1;
  double wsd_fraction = 0.1;  // of `steps`, in which wsd falls

  double rate(int64_t step) const;
};

/// lr for an effective batch: lr, lr * batch / base, or lr * sqrt(batch / base). Scale both lr and min_lr by it.
double scaled_learning_rate(double lr, RateScaling scaling, int64_t batch, int64_t base_batch);

}  // namespace aliquot
