#include "engine/step_decider.h"

#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <utility>

#include "engine/engine_scalars.h"
#include "kernels/system/log_message.h"
#include "optim/clip.h"
#include "optim/muon/muon.h"

namespace aliquot {
namespace {

[[noreturn]] void refuse(std::string_view name, auto value, const std::string& expected) {
  throw UsageError(fmt::format("the state's {} is {}: expected {}", name, value, expected));
}

/// Returns a scalar of the state, or `otherwise` if the state lacks it.
template <typename T>
T number(const State& state, const std::string& name, T otherwise) {
  const auto found = state.scalars.find(name);
  if (found == state.scalars.end()) return otherwise;
  if (const T* value = std::get_if<T>(&found->second)) return *value;
  throw UsageError(fmt::format("the state's {} has the wrong type: expected {}", name,
                               std::is_integral_v<T> ? "an integer" : "a floating-point number"));
}

}  // namespace

StepDecider::StepDecider(const EngineOptions& options, int rank_count) : options_(options), rank_count_(rank_count) {
  set_learning_rate(learning_rate(options.optimizer));
  if (options.precision.compute == DType::kFloat16) scaler_ = LossScaler(options.loss_scaling);
}

void StepDecider::set_learning_rate(double rate) {
  if (!(rate >= 0.0 && rate < 1e30))
    throw UsageError(fmt::format("the learning rate is {}: expected a number from 0 to less than 1e30", rate));
  learning_rate_ = rate;
}

UpdateSteps StepDecider::update_steps(double factor) const {
  const int64_t update = update_count_ + 1;
  const UpdateStep elements = {.rule = rule_at(options_.optimizer, learning_rate_, update),
                               .gradient_factor = static_cast<float>(factor),
                               .seed = options_.seed,
                               .step = update,
                               .reported_step = step_count_ + 1};
  UpdateSteps steps = {elements, elements, elements};
  if (const auto* muon = std::get_if<Muon>(&options_.optimizer)) {
    steps.blend.rule = muon_blend_rule(*muon);
    steps.apply.rule = muon_apply_rule(*muon, learning_rate_);
    if (std::isfinite(steps.blend.gradient_factor)) steps.apply.gradient_factor = 1.0f;
  }
  return steps;
}

UpdateSteps StepDecider::decide(const NormResult& norm) {
  // Gradients are sums over ranks and micro-batches, multiplied by the loss scale.
  const double parts = part_count() * scaler_.scale();
  const bool finite = norm.first_not_finite.empty();
  report_ = {.step = step_count_ + 1,
             .gradient_norm = gradient_norm(norm.sum_of_squares, parts),
             .learning_rate = learning_rate_,
             .loss_scale = scaler_.scale(),
             .skipped = (!finite || norm.abandoned_by >= 0) && !options_.update_in_backward,
             .first_not_finite = norm.first_not_finite,
             .abandoned_by = norm.abandoned_by};
  const double factor =
      norm.abandoned_by >= 0
          ? std::numeric_limits<double>::quiet_NaN()
          : static_cast<double>(gradient_factor(clip_factor(report_.gradient_norm, options_.clip), parts));
  UpdateSteps steps = update_steps(factor);
  LossScaler next = scaler_;
  next.step_done(!finite);
  // The error-feedback residual of a skipped step may be arbitrarily large. After a change of the loss scale, the
  // residual has the old scale.
  steps.resets_residual = report_.skipped || next.scale() != scaler_.scale();
  return steps;
}

UpdateSteps StepDecider::decide_before_norm() {
  return update_steps(static_cast<double>(gradient_factor(1.0, part_count())));
}

const StepReport& StepDecider::end_step(bool own_not_finite, bool logs) {
  report_.own_not_finite = own_not_finite;
  ++step_count_;
  if (!report_.skipped) ++update_count_;
  if (report_.abandoned_by < 0) scaler_.step_done(report_.skipped);
  report_skipped(logs);
  return report_;
}

void StepDecider::report_skipped(bool logs) {
  skipped_in_a_row_ = report_.skipped ? skipped_in_a_row_ + 1 : 0;
  const bool finite = report_.first_not_finite.empty();
  if (finite && !report_.skipped) return;
  const std::string why = finite ? fmt::format("rank {} abandoned it", report_.abandoned_by)
                                 : fmt::format("the gradient of {} is not finite", report_.first_not_finite);
  if (logs)
    log_message("step {} was {}: {}", report_.step,
                report_.skipped ? "skipped" : "not skipped, because units are updated in backward", why);
  if (options_.max_skipped == 0 || skipped_in_a_row_ < options_.max_skipped) return;
  const std::string sentence =
      fmt::format("step {} was skipped: {}; skipped steps in a row: {} (limit EngineOptions::max_skipped)",
                  report_.step, why, std::exchange(skipped_in_a_row_, 0));
  if (finite) throw FaultError(sentence);
  throw NotFiniteError(sentence);
}

std::string StepDecider::Counts::text() const {
  return fmt::format("step {}, {} updates, loss scale {}", step_count, update_count, scale.scale);
}

void StepDecider::save(State& state) const {
  state.step = step_count_;
  state.scalars[kUpdateCountName] = update_count_;
  if (options_.precision.compute != DType::kFloat16) return;
  state.scalars[kLossScaleName] = scaler_.state().scale;
  state.scalars[kLossScaleChancesName] = int64_t{scaler_.state().chances};
  state.scalars[kLossScaleGoodStepsName] = scaler_.state().good_steps;
}

StepDecider::Counts StepDecider::counts_in(const State& state) const {
  const LossScaler::State now = scaler_.state();
  const int64_t update_count = number(state, kUpdateCountName, state.step);
  const int64_t overflows_to_halve = number(state, kLossScaleChancesName, int64_t{now.chances});
  const LossScaler::State scale = {.scale = number(state, kLossScaleName, now.scale),
                                   .chances = static_cast<int32_t>(overflows_to_halve),
                                   .good_steps = number(state, kLossScaleGoodStepsName, now.good_steps)};
  if (state.step < 0) refuse("step", state.step, "a number of steps, at least 0");
  if (update_count < 0 || update_count > state.step)
    refuse(kUpdateCountName, update_count, fmt::format("a number from 0 to {}, the state's step", state.step));
  if (!(scale.scale > 0) || !std::isfinite(scale.scale)) refuse(kLossScaleName, scale.scale, "a positive number");
  if (overflows_to_halve < 0 || overflows_to_halve != scale.chances)
    refuse(kLossScaleChancesName, overflows_to_halve, "an integer from 0 to 2^31 - 1");
  if (scale.good_steps < 0) refuse(kLossScaleGoodStepsName, scale.good_steps, "an integer, at least 0");
  return {state.step, update_count, scale};
}

void StepDecider::resume(const Counts& counts) {
  step_count_ = counts.step_count;
  update_count_ = counts.update_count;
  skipped_in_a_row_ = 0;
  if (options_.precision.compute == DType::kFloat16) scaler_.restore(counts.scale);
}

}  // namespace aliquot
