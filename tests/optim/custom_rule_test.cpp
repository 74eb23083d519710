// Tests of optimizer rules that are defined outside optim/.

#include "optim/custom_rule.h"

#include <cmath>
#include <gtest/gtest.h>

#include "kernels/system/error.h"
#include "tests/optim/shard.h"

namespace aliquot {
namespace {

/// AdamW as a user would write it.
struct MyAdamW {
  static constexpr int kStateCount = 2;
  static constexpr std::array<std::string_view, kStateCount> kStateNames = {"mean", "square"};
  float beta1, new1, beta2, new2, inverse_root, eps, step_size, decay;

  ALIQUOT_HOST_DEVICE MyAdamW at(float lr_scale, float decay_scale) const {
    MyAdamW scaled = *this;
    scaled.step_size = step_size * lr_scale;
    scaled.decay = decay * lr_scale * decay_scale;
    return scaled;
  }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
    state[0] = beta1 * state[0] + new1 * gradient;
    state[1] = beta2 * state[1] + new2 * (gradient * gradient);
    const float direction = state[0] / (sqrtf(state[1]) * inverse_root + eps);
    return weight * (1.0f - decay) - step_size * direction;
  }
};

constexpr AdamW kOptions{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};

MyAdamW my_adamw_at(double lr, int64_t step) {
  const double beta1 = 0.9, beta2 = 0.95;
  const auto rounded = [](double value) { return static_cast<float>(value); };
  return {.beta1 = rounded(beta1),
          .new1 = rounded(1.0 - beta1),
          .beta2 = rounded(beta2),
          .new2 = rounded(1.0 - beta2),
          .inverse_root = rounded(1.0 / std::sqrt(1.0 - std::pow(beta2, static_cast<double>(step)))),
          .eps = 1e-8f,
          .step_size = rounded(lr / (1.0 - std::pow(beta1, static_cast<double>(step)))),
          .decay = rounded(lr * 0.1)};
}

Optimizer my_adamw() { return custom_optimizer<MyAdamW>("my-adamw", 0.01, my_adamw_at); }

/// A rule with three states, unlike any built-in rule: a sum of gradients, the last gradient, and a count of steps.
struct Counting {
  static constexpr int kStateCount = 3;
  static constexpr std::array<std::string_view, kStateCount> kStateNames = {"sum", "last", "count"};
  float lr;

  ALIQUOT_HOST_DEVICE Counting at(float lr_scale, float) const { return {lr * lr_scale}; }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
    state[0] = state[0] + gradient;
    state[1] = gradient;
    state[2] = state[2] + 1.0f;
    return weight - lr * (state[0] / state[2]);
  }
};

struct Stateless {
  static constexpr int kStateCount = 0;
  static constexpr std::array<std::string_view, kStateCount> kStateNames = {};
  float lr;
  ALIQUOT_HOST_DEVICE Stateless at(float lr_scale, float) const { return {lr * lr_scale}; }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float*) const { return weight - lr * gradient; }
};

struct DuplicateStateNames : Stateless {
  static constexpr int kStateCount = 2;
  static constexpr std::array<std::string_view, kStateCount> kStateNames = {"same", "same"};
  ALIQUOT_HOST_DEVICE DuplicateStateNames at(float, float) const { return *this; }
};

template <typename R>
Optimizer make_custom(std::string name) {
  return custom_optimizer<R>(std::move(name), 0.01, [](double lr, int64_t) { return R{static_cast<float>(lr)}; });
}

TEST(CustomRule, ACopyOfAdamWGivesTheBitsOfTheBuiltInRule) {
  const auto segments = segments_of({1, 256, 255, 0, 257, 3000, 17, 20000});
  for (const Isa isa : available_isas()) {
    for (const MasterForm form : kMasterForms) {
      for (const DType gradient : {DType::kFloat32, DType::kBFloat16}) {
        for (const DType moments : {DType::kFloat32, DType::kBFloat16}) {
          Shard built_in(segments, count_of(segments), form, gradient, moments);
          Shard custom(segments, count_of(segments), form, gradient, moments);
          for (int step = 1; step <= 3; ++step) {
            built_in.step(isa, kOptions, step);
            custom.step(isa, my_adamw(), step);
          }
          ASSERT_TRUE(same_bits(built_in, custom)) << name(isa) << " form " << static_cast<int>(form) << " gradients "
                                                   << name(gradient) << " moments " << name(moments);
        }
      }
    }
  }
}

template <typename R>
void expect_same_bits_on_every_path(const char* name) {
  const auto segments = segments_of({257, 3000});
  const Optimizer optimizer = make_custom<R>(name);
  Shard plain(segments, count_of(segments), MasterForm::kSplit, DType::kBFloat16);
  for (int step = 1; step <= 3; ++step) plain.step(Isa::kPlain, optimizer, step);
  for (const Isa isa : available_isas().subspan(1)) {
    Shard vector(segments, count_of(segments), MasterForm::kSplit, DType::kBFloat16);
    for (int step = 1; step <= 3; ++step) vector.step(isa, optimizer, step);
    EXPECT_TRUE(same_bits(plain, vector));
  }
  // Compare with the rule applied to one element at a time.
  Shard fused(segments, count_of(segments), MasterForm::kWhole, DType::kFloat32);
  Shard by_hand(segments, count_of(segments), MasterForm::kWhole, DType::kFloat32);
  fused.step(best_isa(), optimizer, 1);
  by_hand.draw_gradient(1);
  const CustomRule rule = std::get<CustomRule>(rule_at(optimizer, 0.01, 1));
  for (const Segment& segment : segments) {
    const CustomRule scaled = rule.at(segment.lr_scale, segment.decay_scale);
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const auto at = static_cast<size_t>(i);
      float state[kMaxStates] = {};
      by_hand.whole[at] = scaled.update(by_hand.whole[at], by_hand.gradient[at] * 0.37f, state);
      for (int k = 0; k < R::kStateCount; ++k) by_hand.states[k][at] = state[k];
    }
  }
  EXPECT_TRUE(same_bits(fused.whole, by_hand.whole));
  for (int k = 0; k < R::kStateCount; ++k) EXPECT_TRUE(same_bits(fused.states[k], by_hand.states[k]));
}

TEST(CustomRule, EveryNumberOfStatesGivesTheSameBitsOnEveryPath) {
  expect_same_bits_on_every_path<Counting>("counting");
  expect_same_bits_on_every_path<Stateless>("stateless");
}

TEST(CustomRule, ReportsNameRateAndStates) {
  const Optimizer optimizer = my_adamw();
  EXPECT_EQ(name(optimizer), "my-adamw");
  EXPECT_EQ(learning_rate(optimizer), 0.01);
  EXPECT_EQ(state_specs(optimizer, DType::kBFloat16),
            (std::vector<StateSpec>{{"mean", DType::kBFloat16}, {"square", DType::kBFloat16}}));
  EXPECT_EQ(state_bytes(make_custom<Counting>("counting"), DType::kFloat32, 256), 3 * 1024);
  EXPECT_TRUE(state_specs(make_custom<Stateless>("stateless")).empty());
  EXPECT_NO_THROW(check(optimizer, DType::kBFloat16));
}

TEST(CustomRule, RejectsInvalidNamesStatesAndRates) {
  EXPECT_THROW(check(CustomOptimizer{}), UsageError);
  EXPECT_THROW(make_custom<Stateless>(""), UsageError);
  EXPECT_THROW(make_custom<Stateless>("adamw"), UsageError);
  EXPECT_THROW(custom_optimizer<Stateless>("no-function", 0.1, nullptr), UsageError);
  EXPECT_THROW(custom_optimizer<DuplicateStateNames>("duplicate-states", 0.1,
                                                     [](double, int64_t) { return DuplicateStateNames{}; }),
               UsageError);
  EXPECT_THROW(check(custom_optimizer<Stateless>("negative-rate", -1.0, [](double, int64_t) { return Stateless{}; })),
               UsageError);
  // Stochastic rounding draws noise for at most two states of an element, so bf16 rejects three.
  EXPECT_NO_THROW(check(make_custom<Counting>("counting")));
  EXPECT_THROW(check(make_custom<Counting>("counting"), DType::kBFloat16), UsageError);
}

}  // namespace
}  // namespace aliquot
