#pragma once
// Update rules: the computation of one element in one step.
//
// A rule is a struct of the constants of one step with these members:
//   static constexpr int kStateCount;                                // state values of each weight, at most kMaxStates
//   Rule at(float lr_scale, float decay_scale) const;                // returns the rule for one segment
//   float update(float weight, float gradient, float* state) const;  // returns the new weight; updates `state`
// `gradient` is already unscaled and clipped. Both functions are ALIQUOT_HOST_DEVICE: host loops, CUDA kernels and
// tests use the same source. They use only + - * / sqrt and comparisons, which IEEE 754 rounds correctly, so all give
// the same bits. Other functions, such as those for bias correction, are computed once for each step on the host, in
// double, and rounded once. 8-bit moments use the same rules: each block is decoded before the update and encoded after
// it. Muon's computations on full matrices are in optim/muon/muon.h.

#include <cstddef>
#include <cstdint>
#include <math.h>
#include <variant>

#include "kernels/formats/host_device.h"
#include "optim/optimizer.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The moments m and v of Adam. direction() updates them and returns the direction of the step.
struct AdamMoments {
  float beta1, new1, beta2, new2;  // new1 = 1 - beta1, new2 = 1 - beta2
  float inverse_root;              // 1 / sqrt(1 - beta2^t)
  float eps;

  ALIQUOT_HOST_DEVICE float direction(float gradient, float* state) const {
    state[0] = beta1 * state[0] + new1 * gradient;
    state[1] = beta2 * state[1] + new2 * (gradient * gradient);
    return state[0] / (sqrtf(state[1]) * inverse_root + eps);
  }
};

struct AdamWRule {
  static constexpr int kStateCount = 2;
  AdamMoments moments;
  float step_size;  // lr / (1 - beta1^t)
  float decay;      // lr * weight_decay

  ALIQUOT_HOST_DEVICE AdamWRule at(float lr_scale, float decay_scale) const {
    return {moments, step_size * lr_scale, decay * lr_scale * decay_scale};
  }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
    const float direction = moments.direction(gradient, state);
    return weight * (1.0f - decay) - step_size * direction;
  }
};

struct AdamRule {
  static constexpr int kStateCount = 2;
  AdamMoments moments;
  float step_size;
  float decay;  // weight_decay

  ALIQUOT_HOST_DEVICE AdamRule at(float lr_scale, float decay_scale) const {
    return {moments, step_size * lr_scale, decay * decay_scale};
  }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
    return weight - step_size * moments.direction(gradient + decay * weight, state);
  }
};

struct SgdRule {
  static constexpr int kStateCount = 0;
  float lr;
  float decay;  // weight_decay

  ALIQUOT_HOST_DEVICE SgdRule at(float lr_scale, float decay_scale) const {
    return {lr * lr_scale, decay * decay_scale};
  }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float*) const {
    return weight - lr * (gradient + decay * weight);
  }
};

struct MomentumRule {
  static constexpr int kStateCount = 1;
  float lr, decay;
  float momentum;
  float damped;       // 1 - dampening; 1 in the first step
  float of_gradient;  // the weight moves along of_gradient * gradient + of_buffer * buffer
  float of_buffer;    // with Nesterov, of_gradient = 1 and of_buffer = momentum; otherwise 0 and 1

  ALIQUOT_HOST_DEVICE MomentumRule at(float lr_scale, float decay_scale) const {
    return {lr * lr_scale, decay * decay_scale, momentum, damped, of_gradient, of_buffer};
  }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
    const float decayed = gradient + decay * weight;
    state[0] = momentum * state[0] + damped * decayed;
    return weight - lr * (of_gradient * decayed + of_buffer * state[0]);
  }
};

struct LionRule {
  static constexpr int kStateCount = 1;
  float lr;
  float beta1, new1, beta2, new2;
  float decay;  // lr * weight_decay

  ALIQUOT_HOST_DEVICE LionRule at(float lr_scale, float decay_scale) const {
    return {lr * lr_scale, beta1, new1, beta2, new2, decay * lr_scale * decay_scale};
  }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
    const float blend = beta1 * state[0] + new1 * gradient;
    state[0] = beta2 * state[0] + new2 * gradient;
    const float signed_lr = blend > 0.0f ? lr : (blend < 0.0f ? -lr : 0.0f);
    return weight * (1.0f - decay) - signed_lr;
  }
};

/// Part 1 of a step of Muon (optim/muon/muon.h): replaces `weight` by the value to orthogonalize.
struct MuonBlendRule {
  static constexpr int kStateCount = 1;
  float momentum, of_gradient;        // coefficients of the new momentum
  float gradient_again, of_momentum;  // coefficients of the value to orthogonalize

  ALIQUOT_HOST_DEVICE MuonBlendRule at(float, float) const { return *this; }
  ALIQUOT_HOST_DEVICE float update(float, float gradient, float* state) const {
    state[0] = momentum * state[0] + of_gradient * gradient;
    return gradient_again * gradient + of_momentum * state[0];
  }
};

/// Part 3 of a step of Muon: `gradient` is the orthogonalized value.
struct MuonApplyRule {
  static constexpr int kStateCount = 0;
  float lr;
  float decay;  // lr * weight_decay

  ALIQUOT_HOST_DEVICE MuonApplyRule at(float lr_scale, float decay_scale) const {
    return {lr * lr_scale, decay * lr_scale * decay_scale};
  }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float*) const {
    return weight * (1.0f - decay) - lr * gradient;
  }
};

struct CustomLoops;
struct UpdateArgs;
struct UpdateStep;
class Stream;
using CustomCuda = void (*)(Stream&, const UpdateArgs&, const UpdateStep&, const void* constants);

inline constexpr size_t kMaxRuleBytes = 64;

/// One step of a custom rule (optim/custom_rule.h): its constants as bytes, and functions that know its type. at() and
/// update() call those of the rule. They are meant for tests, because one call for each element is slow.
struct CustomRule {
  const CustomLoops* loops;  // has static lifetime
  CustomCuda cuda;           // null if the rule supports only hosts
  alignas(double) std::byte constants[kMaxRuleBytes];

  CustomRule at(float lr_scale, float decay_scale) const;
  float update(float weight, float gradient, float* state) const;
};

using Rule =
    std::variant<AdamWRule, AdamRule, SgdRule, MomentumRule, LionRule, MuonBlendRule, MuonApplyRule, CustomRule>;
inline constexpr size_t kBuiltInRules = std::variant_size_v<Rule> - 1;

/// Returns the rule of a step with the scheduled learning rate `lr`. `step` counts from 1 and excludes skipped steps.
/// For Muon, returns the rule of `rest`.
Rule rule_at(const Optimizer& optimizer, double lr, int64_t step);

}  // namespace aliquot
#pragma GCC visibility pop
