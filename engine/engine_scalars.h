#pragma once
// Names of the scalars that engines save in checkpoints.

#include <algorithm>
#include <array>
#include <string_view>

namespace aliquot {

inline constexpr const char* kUpdateCountName = "update_count";
// Only with fp16.
inline constexpr const char* kLossScaleName = "loss_scale";
inline constexpr const char* kLossScaleChancesName = "loss_scale_chances";
inline constexpr const char* kLossScaleGoodStepsName = "loss_scale_good_steps";

/// Whether an engine of any precision saves a scalar of this name. A program must not give its own scalars such a name.
inline bool is_engine_scalar(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {kUpdateCountName, kLossScaleName, kLossScaleChancesName,
                                                      kLossScaleGoodStepsName};
  return std::ranges::find(kNames, name) != kNames.end();
}

}  // namespace aliquot
