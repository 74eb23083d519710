#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr double kScaleFactor = 2.0;

void require(bool good, std::string_view option, double value, std::string_view range) {
  if (!good) throw UsageError(fmt::format("fp16: invalid value {} for {}: expected {}", value, option, range));
}

}  // namespace

LossScaler::LossScaler(const LossScaling& scaling) : scaling_(scaling) {
  require(scaling.loss_scale >= 0.0 && std::isfinite(scaling.loss_scale), "loss_scale", scaling.loss_scale,
          "0 (dynamic) or more");
  require(scaling.initial_scale_power >= 0 && scaling.initial_scale_power <= 120, "initial_scale_power",
          scaling.initial_scale_power, "0 to 120");
  require(scaling.loss_scale_window >= 1, "loss_scale_window", static_cast<double>(scaling.loss_scale_window),
          "1 or more");
  require(scaling.hysteresis >= 1, "hysteresis", scaling.hysteresis, "1 or more");
  require(scaling.min_loss_scale > 0.0 && std::isfinite(scaling.min_loss_scale), "min_loss_scale",
          scaling.min_loss_scale, "a number above 0");
  const bool fixed = scaling.loss_scale > 0.0;
  state_.scale = fixed ? scaling.loss_scale : std::ldexp(1.0, scaling.initial_scale_power);
  state_.chances = scaling.hysteresis;
}

void LossScaler::step_done(bool overflowed) {
  if (scaling_.loss_scale > 0.0) return;
  if (overflowed) {
    if (state_.chances > 1) {
      --state_.chances;
    } else {
      state_.scale = std::max(state_.scale / kScaleFactor, scaling_.min_loss_scale);
    }
    state_.good_steps = 0;
    return;
  }
  ++state_.good_steps;
  const bool window_full = state_.good_steps % scaling_.loss_scale_window == 0;
  if (window_full || scaling_.consecutive_hysteresis) state_.chances = scaling_.hysteresis;
  if (window_full) state_.scale *= kScaleFactor;
}

}  // namespace aliquot
