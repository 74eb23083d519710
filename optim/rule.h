#pragma once
// Update rules: what happens to one element in one step, in registers.
//
// A rule is a struct that holds the constants of one step and has
//   static constexpr int kStateCount;          // values kept beside each weight, at most kMaxStates
//   Rule at(float lr_scale, float decay_scale) const;                // the rule for one segment
//   float update(float weight, float gradient, float* state) const;  // the new weight; state is updated in place
// `gradient` is already unscaled and clipped. Both functions are ALIQUOT_HOST_DEVICE, so the host loops, the CUDA kernels and
// the tests run this one text. They use + - * / sqrt and comparisons only, each IEEE exact and rounded once, so all
// give the same bits; what is costlier (bias corrections) is computed once a step on the host, in double, and rounded
// once. Moments in eight bits take the same rules, decoded before and encoded after, a block at a time; what works on a
// whole matrix is in optim/muon/muon.h.

#include <cstddef>
#include <cstdint>
#include <math.h>
#include <variant>

#include "kernels/formats/host_device.h"
#include "optim/optimizer.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// m and v of Adam, and the direction they give.
struct AdamMoments {
  float beta1, new1, beta2, new2;  // new = 1 - beta
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
  float of_gradient;  // what moves the weight: of_gradient * gradient + of_buffer * buffer
  float of_buffer;    // Nesterov: 1 and momentum; else 0 and 1

  ALIQUOT_HOST_DEVICE MomentumRule at(float lr_scale, float decay_scale) const {
    return {lr * lr_scale, decay * decay_scale, momentum, damped, of_gradient, of_buffer};
  }
  ALIQUOT_HOST_DEVICE float update(float weight, float gradient, float* state) const {
    const float whole = gradient + decay * weight;
    state[0] = momentum * state[0] + damped * whole;
    return weight - lr * (of_gradient * whole + of_buffer * state[0]);
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
    const float towards = blend > 0.0f ? lr : (blend < 0.0f ? -lr : 0.0f);
    return weight * (1.0f - decay) - towards;
  }
};

/// Parts of Muon's step (optim/muon/muon.h). This one replaces "weight" by what is to be made orthogonal.
struct MuonBlendRule {
  static constexpr int kStateCount = 1;
  float momentum, of_gradient;        // of the new momentum
  float gradient_again, of_momentum;  // of the blend

  ALIQUOT_HOST_DEVICE MuonBlendRule at(float, float) const { return *this; }
  ALIQUOT_HOST_DEVICE float update(float, float gradient, float* state) const {
    state[0] = momentum * state[0] + of_gradient * gradient;
    return gradient_again * gradient + of_momentum * state[0];
  }
};

/// And this one takes what was made orthogonal as gradient.
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

/// One step of a rule that optim/ does not know (optim/custom_rule.h): its constants as bytes, and what knows its type,
/// which is alive as long as the program. at() and update() do what the rule's own do, one call an element, for checks.
struct CustomRule {
  const CustomLoops* loops;
  CustomCuda cuda;  // null: for hosts alone
  alignas(double) std::byte constants[kMaxRuleBytes];

  CustomRule at(float lr_scale, float decay_scale) const;
  float update(float weight, float gradient, float* state) const;
};

using Rule =
    std::variant<AdamWRule, AdamRule, SgdRule, MomentumRule, LionRule, MuonBlendRule, MuonApplyRule, CustomRule>;
inline constexpr size_t kBuiltInRules = std::variant_size_v<Rule> - 1;

/// The rule of step `step`, counted from 1 over steps that were taken (a skipped step does not count), at the rate `lr`
/// that the schedule gives for it. Of Muon, its rest's.
Rule rule_at(const Optimizer& optimizer, double lr, int64_t step);

}  // namespace aliquot
#pragma GCC visibility pop
