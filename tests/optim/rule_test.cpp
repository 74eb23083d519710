// Compares each rule with its published formula, computed in double.

#include "optim/rule.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>

namespace aliquot {
namespace {

/// One weight, updated by the formulas of the papers and of torch's documentation.
struct Reference {
  double weight;
  double state[2] = {};

  void step(const AdamW& o, double lr, double g, int t) {
    weight *= 1.0 - lr * decimal(o.weight_decay);
    weight -= lr * adam(decimal(o.beta1), decimal(o.beta2), decimal(o.eps), g, t);
  }
  void step(const AdamW8bit& o, double lr, double g, int t) {  // quantization is not part of the rule
    step(AdamW{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay}, lr, g, t);
  }
  void step(const Muon& o, double lr, double g, int t) { step(o.rest, lr, g, t); }
  void step(const CustomOptimizer&, double, double, int) { FAIL() << "a custom rule has no published formula"; }
  void step(const Adam& o, double lr, double g, int t) {
    weight -= lr * adam(decimal(o.beta1), decimal(o.beta2), decimal(o.eps), g + decimal(o.weight_decay) * weight, t);
  }
  void step(const Sgd& o, double lr, double g, int t) {
    g += decimal(o.weight_decay) * weight;
    if (o.momentum != 0.0f) {
      state[0] = t == 1 ? g : decimal(o.momentum) * state[0] + (1.0 - decimal(o.dampening)) * g;
      g = o.nesterov ? g + decimal(o.momentum) * state[0] : state[0];
    }
    weight -= lr * g;
  }
  void step(const Lion& o, double lr, double g, int) {
    const double blend = decimal(o.beta1) * state[0] + (1.0 - decimal(o.beta1)) * g;
    weight -= lr * ((blend > 0) - (blend < 0) + decimal(o.weight_decay) * weight);
    state[0] = decimal(o.beta2) * state[0] + (1.0 - decimal(o.beta2)) * g;
  }

 private:
  double adam(double beta1, double beta2, double eps, double g, int t) {
    state[0] = beta1 * state[0] + (1.0 - beta1) * g;
    state[1] = beta2 * state[1] + (1.0 - beta2) * g * g;
    const double mean = state[0] / (1.0 - std::pow(beta1, t)), square = state[1] / (1.0 - std::pow(beta2, t));
    return mean / (std::sqrt(square) + eps);
  }
};

/// The fp32 rule rounds about ten times per step. Each rounding has an error of at most 2^-24 of a value below 4. Over
/// 30 steps that is at most 30 * 10 * 4 * 2^-24 = 7e-5. Errors of random sign add up to far less.
void expect_near_formula(const Optimizer& optimizer, double tolerance) {
  constexpr int kSteps = 30;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 200; ++trial) {
    float weight = normal(random), state[kMaxStates] = {};
    Reference reference{.weight = double{weight}};
    for (int t = 1; t <= kSteps; ++t) {
      const double lr = learning_rate(optimizer) * (1.0 - 0.5 * t / kSteps);
      const float gradient = normal(random);
      std::visit([&](const auto& rule) { weight = rule.at(1.0f, 1.0f).update(weight, gradient, state); },
                 rule_at(optimizer, lr, t));
      std::visit([&](const auto& options) { reference.step(options, lr, double{gradient}, t); }, optimizer);
      ASSERT_NEAR(double{weight}, reference.weight, tolerance) << name(optimizer) << " step " << t;
      for (size_t k = 0; k < state_specs(optimizer).size(); ++k) {
        ASSERT_NEAR(double{state[k]}, reference.state[k], tolerance) << name(optimizer) << " step " << t;
      }
    }
  }
}

TEST(Rule, AdamWFollowsItsFormula) {
  expect_near_formula(AdamW{.lr = 0.01f}, 3e-6);
  expect_near_formula(AdamW{.lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.999f, .eps = 1e-3f, .weight_decay = 0.5f}, 3e-6);
}

TEST(Rule, MuonUpdatesOtherParametersWithAdamW) { expect_near_formula(Muon{.rest = {.lr = 0.01f}}, 3e-6); }

TEST(Rule, AdamFollowsItsFormula) {
  expect_near_formula(Adam{.lr = 0.01f}, 3e-6);
  expect_near_formula(Adam{.lr = 0.02f, .beta1 = 0.8f, .beta2 = 0.999f, .eps = 1e-3f, .weight_decay = 0.5f}, 3e-6);
}

TEST(Rule, SgdFollowsItsFormula) {
  expect_near_formula(Sgd{.lr = 0.1f, .momentum = 0.0f, .weight_decay = 0.1f}, 1e-5);
  expect_near_formula(Sgd{.lr = 0.1f, .momentum = 0.9f, .dampening = 0.3f, .weight_decay = 0.1f}, 1e-5);
  expect_near_formula(Sgd{.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.1f, .nesterov = true}, 1e-5);
}

TEST(Rule, LionFollowsItsFormula) { expect_near_formula(Lion{.lr = 0.01f}, 3e-6); }

// Computed by hand for g = 0.5, w = 1, lr = 0.1. The bias-corrected moments of the first step are g and g^2.
TEST(Rule, FirstStepsMatchValuesComputedByHand) {
  float state[kMaxStates] = {};
  const auto adamw = std::get<AdamWRule>(rule_at(AdamW{.weight_decay = 0.1f}, 0.1, 1));
  EXPECT_NEAR(adamw.update(1.0f, 0.5f, state), 0.89f, 1e-6f);  // 1 * (1 - 0.01) - 0.1
  EXPECT_FLOAT_EQ(state[0], 0.05f);
  EXPECT_FLOAT_EQ(state[1], 0.0125f);
  float buffer[kMaxStates] = {};
  const auto momentum = std::get<MomentumRule>(rule_at(Sgd{.dampening = 0.5f}, 0.1, 1));
  EXPECT_FLOAT_EQ(momentum.update(1.0f, 0.5f, buffer), 0.95f);
  EXPECT_FLOAT_EQ(buffer[0], 0.5f);  // the first step ignores dampening
  const auto lion = std::get<LionRule>(rule_at(Lion{.weight_decay = 0.0f}, 0.1, 1));
  float average[kMaxStates] = {};
  EXPECT_FLOAT_EQ(lion.update(1.0f, -0.5f, average), 1.1f);
  EXPECT_FLOAT_EQ(average[0], -0.005f);
  EXPECT_EQ(lion.update(1.0f, 0.0f, buffer + 1), 1.0f);  // a gradient of zero has no sign
}

TEST(Rule, FloatOptionsAreReadAsTheirShortestDecimals) {
  EXPECT_EQ(decimal(0.999f), 0.999);
  EXPECT_EQ(decimal(3e-4f), 3e-4);
  EXPECT_EQ(decimal(0.0f), 0.0);
  EXPECT_EQ(learning_rate(AdamW{.lr = 3e-4f}), 3e-4);
  EXPECT_EQ(std::get<AdamWRule>(rule_at(AdamW{.beta2 = 0.999f}, 0.1, 1)).moments.new2, 0.001f);
}

TEST(Rule, AppliesTheScalesOfASegment) {
  const auto rule = std::get<AdamWRule>(rule_at(AdamW{.weight_decay = 0.1f}, 0.1, 1));
  float state[kMaxStates] = {};
  EXPECT_NEAR(rule.at(1.0f, 0.0f).update(1.0f, 0.5f, state), 0.9f, 1e-6f);
  float fresh[kMaxStates] = {};
  EXPECT_NEAR(rule.at(0.5f, 2.0f).update(1.0f, 0.5f, fresh), 0.94f, 1e-6f);  // 1 - 0.1 * 0.5 * 0.1 * 2 - 0.05
}

}  // namespace
}  // namespace aliquot
