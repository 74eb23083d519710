#include "optim/rule.h"

#include <cmath>

#include "optim/custom_loops.h"

namespace aliquot {
namespace {

float rounded(double value) { return static_cast<float>(value); }

/// Compute 1 - beta^t and 1 - beta in double, because the subtraction in float would lose precision.
double bias_correction(float beta, int64_t step) { return 1.0 - std::pow(decimal(beta), static_cast<double>(step)); }
float one_minus(float beta) { return rounded(1.0 - decimal(beta)); }

template <typename O>
AdamMoments moments_at(const O& options, int64_t step) {
  return {.beta1 = options.beta1,
          .new1 = one_minus(options.beta1),
          .beta2 = options.beta2,
          .new2 = one_minus(options.beta2),
          .inverse_root = rounded(1.0 / std::sqrt(bias_correction(options.beta2, step))),
          .eps = options.eps};
}

template <typename O>
Rule adamw_rule(const O& options, double lr, int64_t step) {
  return AdamWRule{moments_at(options, step), rounded(lr / bias_correction(options.beta1, step)),
                   rounded(lr * decimal(options.weight_decay))};
}

Rule rule_of(const AdamW& options, double lr, int64_t step) { return adamw_rule(options, lr, step); }
Rule rule_of(const AdamW8bit& options, double lr, int64_t step) { return adamw_rule(options, lr, step); }

Rule rule_of(const Adam& options, double lr, int64_t step) {
  return AdamRule{moments_at(options, step), rounded(lr / bias_correction(options.beta1, step)), options.weight_decay};
}

Rule rule_of(const Sgd& options, double lr, int64_t step) {
  if (options.momentum == 0.0f) return SgdRule{rounded(lr), options.weight_decay};
  return MomentumRule{.lr = rounded(lr),
                      .decay = options.weight_decay,
                      .momentum = options.momentum,
                      .damped = step == 1 ? 1.0f : one_minus(options.dampening),
                      .of_gradient = options.nesterov ? 1.0f : 0.0f,
                      .of_buffer = options.nesterov ? options.momentum : 1.0f};
}

Rule rule_of(const Lion& options, double lr, int64_t) {
  return LionRule{.lr = rounded(lr),
                  .beta1 = options.beta1,
                  .new1 = one_minus(options.beta1),
                  .beta2 = options.beta2,
                  .new2 = one_minus(options.beta2),
                  .decay = rounded(lr * decimal(options.weight_decay))};
}

Rule rule_of(const Muon& options, double lr, int64_t step) { return rule_of(options.rest, lr, step); }

Rule rule_of(const CustomOptimizer& custom, double lr, int64_t step) { return custom.description->rule_at(lr, step); }

}  // namespace

CustomRule CustomRule::at(float lr_scale, float decay_scale) const {
  CustomRule of_segment{.loops = loops, .cuda = cuda, .constants = {}};
  loops->at(of_segment.constants, constants, lr_scale, decay_scale);
  return of_segment;
}

float CustomRule::update(float weight, float gradient, float* state) const {
  return loops->update(constants, weight, gradient, state);
}

Rule rule_at(const Optimizer& optimizer, double lr, int64_t step) {
  return std::visit([&](const auto& options) { return rule_of(options, lr, step); }, optimizer);
}

}  // namespace aliquot
