// Compares learning rates, clipping and loss scales with tables computed by hand.

#include "optim/schedule.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "kernels/system/error.h"
#include "optim/clip.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"

namespace aliquot {
namespace {

void expect_rates(const RateSchedule& schedule, const std::vector<double>& rates) {
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(schedule.rate(static_cast<int64_t>(i) + 1), rates[i], 1e-15)
        << "shape " << static_cast<int>(schedule.shape) << " step " << i + 1;
  }
}

RateSchedule schedule(RateShape shape, double min_lr = 0.2) {
  return {.shape = shape, .lr = 1.0, .min_lr = min_lr, .warmup_steps = 4, .steps = 12};
}

TEST(Schedule, WarmsUpThenFollowsItsShape) {
  expect_rates(schedule(RateShape::kConstant), {.25, .5, .75, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  expect_rates(schedule(RateShape::kLinear), {.25, .5, .75, 1, .9, .8, .7, .6, .5, .4, .3, .2, .2});
  const double root = std::sqrt(0.5);  // cos(pi / 4)
  expect_rates(schedule(RateShape::kCosine, 0.0),
               {.25, .5, .75, 1, (1 + std::sqrt(2 + std::sqrt(2.0)) / 2) / 2, (1 + root) / 2,
                (1 + std::sqrt(2 - std::sqrt(2.0)) / 2) / 2, .5, (1 - std::sqrt(2 - std::sqrt(2.0)) / 2) / 2,
                (1 - root) / 2, (1 - std::sqrt(2 + std::sqrt(2.0)) / 2) / 2, 0, 0});
  expect_rates(schedule(RateShape::kInverseSqrt), {.25, .5, .75, 1, 2 / std::sqrt(5.0), 2 / std::sqrt(6.0),
                                                   2 / std::sqrt(7.0), 2 / std::sqrt(8.0), 2.0 / 3});
}

TEST(Schedule, WarmsUpFromAGivenRateAndLogarithmically) {
  RateSchedule s = schedule(RateShape::kConstant);
  s.warmup_from = 0.2;
  expect_rates(s, {.4, .6, .8, 1, 1});
  s.warmup_shape = WarmupShape::kLog;
  expect_rates(s, {.2, .6, .2 + .8 * std::log(3.0) / std::log(4.0), 1, 1});
  s.warmup_steps = 1;
  expect_rates(s, {1, 1});
  s.warmup_steps = 0;
  expect_rates(s, {1, 1});
}

TEST(Schedule, WsdDecaysOverTheLastTenth) {
  const RateSchedule wsd{.shape = RateShape::kWsd, .lr = 1.0, .min_lr = 0.0, .warmup_steps = 2, .steps = 40};
  expect_rates(wsd, {.5, 1, 1, 1});
  EXPECT_EQ(wsd.rate(36), 1.0);
  EXPECT_DOUBLE_EQ(wsd.rate(37), 0.75);
  EXPECT_DOUBLE_EQ(wsd.rate(39), 0.25);
  EXPECT_EQ(wsd.rate(40), 0.0);
  EXPECT_EQ(wsd.rate(41), 0.0);
  RateSchedule half = wsd;
  half.wsd_fraction = 0.5;
  EXPECT_EQ(half.rate(20), 1.0);
  EXPECT_DOUBLE_EQ(half.rate(30), 0.5);
}

TEST(Schedule, EndsExactlyAtTheMinimum) {
  for (const RateShape shape : {RateShape::kLinear, RateShape::kCosine, RateShape::kWsd}) {
    for (const int64_t warmup : {0, 1, 6}) {
      const RateSchedule s{.shape = shape, .lr = 3e-4, .min_lr = 1e-5, .warmup_steps = warmup, .steps = 7};
      EXPECT_EQ(s.rate(7), 1e-5) << "shape " << static_cast<int>(shape) << " " << warmup;
    }
    const RateSchedule all_warmup{.shape = shape, .lr = 3e-4, .min_lr = 0, .warmup_steps = 7, .steps = 7};
    EXPECT_EQ(all_warmup.rate(7), 3e-4);
    const RateSchedule longer{.shape = shape, .lr = 3e-4, .min_lr = 0, .warmup_steps = 10, .steps = 5};
    EXPECT_DOUBLE_EQ(longer.rate(5), 1.5e-4);
  }
  const RateSchedule no_warmup{
      .shape = RateShape::kInverseSqrt, .lr = 1.0, .min_lr = 0.5, .warmup_steps = 0, .steps = 9};
  EXPECT_EQ(no_warmup.rate(1), 1.0);
  EXPECT_DOUBLE_EQ(no_warmup.rate(2), std::sqrt(0.5));
  EXPECT_EQ(no_warmup.rate(9), 0.5);
}

TEST(Schedule, ScalesTheRateWithTheBatch) {
  EXPECT_EQ(scaled_learning_rate(0.1, RateScaling::kNone, 64, 0), 0.1);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, RateScaling::kLinear, 64, 16), 0.4);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.1, RateScaling::kSqrt, 64, 16), 0.2);
  EXPECT_THROW(scaled_learning_rate(0.1, RateScaling::kSqrt, 64, 0), UsageError);
}

TEST(Clip, FactorLimitsTheNormAndIsNanForANonfiniteNorm) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / 4.000001);
  EXPECT_DOUBLE_EQ(clip_factor(1.0, 1.0), 1.0 / 1.000001);
  EXPECT_EQ(clip_factor(1e9, 0.0), 1.0);
  EXPECT_EQ(gradient_norm(64.0, 2.0), 4.0);
  EXPECT_EQ(gradient_factor(0.5, 1024.0), 0.5f / 1024.0f);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(gradient_factor(clip_factor(gradient_norm(bad), 1.0))));
    EXPECT_TRUE(std::isnan(gradient_factor(clip_factor(gradient_norm(bad), 0.0), 2.0)));
  }
}

/// Returns the scale after each step of `script`, in which 'o' is a step with an overflow.
std::vector<double> scales(LossScaler scaler, std::string_view script) {
  std::vector<double> scales;
  for (const char step : script) {
    scaler.step_done(step == 'o');
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(LossScaler, HalvesAndDoublesAfterScriptedOverflows) {
  const LossScaling scaling{.initial_scale_power = 4, .loss_scale_window = 3, .hysteresis = 2, .min_loss_scale = 4.0};
  using Scales = std::vector<double>;
  EXPECT_EQ(LossScaler(scaling).scale(), 16.0);
  // The scale doubles after the third step without overflow. The first overflow does not change it, because hysteresis
  // is 2. The next two overflows halve it.
  EXPECT_EQ(scales(LossScaler(scaling), "...ooo"), (Scales{16, 16, 32, 32, 16, 8}));
  // An overflow restarts the window. After a full window, the next overflow does not change the scale.
  EXPECT_EQ(scales(LossScaler(scaling), "..o...o...oo"), (Scales{16, 16, 16, 16, 16, 32, 32, 32, 32, 64, 64, 32}));
  // After a window that is not full, the next overflow halves the scale.
  EXPECT_EQ(scales(LossScaler(scaling), "o..o..o"), (Scales{16, 16, 16, 8, 8, 8, 4}));
  EXPECT_EQ(scales(LossScaler(scaling), "ooooo"), (Scales{16, 8, 4, 4, 4}));  // never below min_loss_scale
  LossScaling consecutive = scaling;
  consecutive.consecutive_hysteresis = true;
  EXPECT_EQ(scales(LossScaler(consecutive), "o.o.oo"), (Scales{16, 16, 16, 16, 16, 8}));
}

TEST(LossScaler, AFixedScaleNeverChanges) {
  EXPECT_EQ(LossScaler().scale(), 1.0);
  EXPECT_EQ(scales(LossScaler({.loss_scale = 128.0}), "oo..."), (std::vector<double>(5, 128.0)));
}

TEST(LossScaler, RestoredStateContinuesTheSequence) {
  const LossScaling scaling{.loss_scale_window = 2, .hysteresis = 3};
  LossScaler uninterrupted(scaling), first(scaling);
  for (const bool overflowed : {true, false, false, true, false})
    uninterrupted.step_done(overflowed), first.step_done(overflowed);
  LossScaler second(scaling);
  second.restore(first.state());
  for (const bool overflowed : {false, true, true, true, false, false}) {
    uninterrupted.step_done(overflowed), second.step_done(overflowed);
    EXPECT_EQ(uninterrupted.state(), second.state());
  }
}

TEST(LossScaler, RejectsOptionsOutOfRange) {
  EXPECT_THROW(LossScaler({.loss_scale = -1.0}), UsageError);
  EXPECT_THROW(LossScaler({.loss_scale_window = 0}), UsageError);
  EXPECT_THROW(LossScaler({.hysteresis = 0}), UsageError);
  EXPECT_THROW(LossScaler({.min_loss_scale = 0.0}), UsageError);
}

TEST(Optimizer, ReportsItsStatesAndTheirSizes) {
  using Specs = std::vector<StateSpec>;
  EXPECT_EQ(state_specs(AdamW{}), (Specs{{"exp_avg"}, {"exp_avg_sq"}}));
  EXPECT_EQ(state_specs(Adam{}, DType::kBFloat16),
            (Specs{{"exp_avg", DType::kBFloat16}, {"exp_avg_sq", DType::kBFloat16}}));
  EXPECT_EQ(state_specs(Sgd{}), (Specs{{"momentum_buffer"}}));
  EXPECT_EQ(state_specs(Sgd{.momentum = 0.0f}), Specs{});
  EXPECT_EQ(state_specs(Lion{}), (Specs{{"exp_avg"}}));
  EXPECT_EQ(state_bytes(AdamW{}, DType::kFloat32, 512), 4096);
  EXPECT_EQ(state_bytes(Lion{}, DType::kBFloat16, 512), 1024);
  EXPECT_EQ(state_bytes(StateSpec{"scale", DType::kFloat32, kBlockElements}, 512), 8);
}

TEST(Optimizer, DecaysOnlyMatricesByDefault) {
  const std::vector<int64_t> matrix{3, 4}, bias{4}, scalar;
  EXPECT_TRUE(is_decayed(matrix));
  EXPECT_FALSE(is_decayed(bias));
  EXPECT_FALSE(is_decayed(scalar));
  EXPECT_TRUE(is_decayed(bias, true));
}

TEST(Optimizer, RejectsOptionsOutOfRange) {
  EXPECT_NO_THROW(check(AdamW{}));
  EXPECT_THROW(check(AdamW{.lr = -1.0f}), UsageError);
  EXPECT_THROW(check(AdamW{.beta2 = 1.0f}), UsageError);
  EXPECT_THROW(check(Adam{.eps = NAN}), UsageError);
  EXPECT_THROW(check(Sgd{.dampening = 0.5f, .nesterov = true}), UsageError);
  EXPECT_THROW(check(Lion{}, DType::kFloat16), UsageError);
}

}  // namespace
}  // namespace aliquot
