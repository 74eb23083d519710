#pragma once
// An optimizer by its name, and the numbers that were given for it.

#include <array>
#include <optional>

#include "engine/options/values.h"
#include "optim/optimizer.h"

namespace aliquot {

enum class OptimizerKind : uint8_t { kAdamW, kAdam, kAdamW8bit, kLion, kSgd, kMuon };

inline constexpr std::array kOptimizerWords{EnumName{"adamw", OptimizerKind::kAdamW},
                                            EnumName{"adam", OptimizerKind::kAdam},
                                            EnumName{"adamw8bit", OptimizerKind::kAdamW8bit},
                                            EnumName{"lion", OptimizerKind::kLion},
                                            EnumName{"sgd", OptimizerKind::kSgd},
                                            EnumName{"muon", OptimizerKind::kMuon}};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  // Unset: the optimizer's own default.
  std::optional<double> lr = {}, beta1 = {}, beta2 = {}, eps = {}, weight_decay = {}, momentum = {}, muon_lr = {};
  std::optional<bool> nesterov = {};
};

/// Numbers that the optimizer does not have are ignored. Those of Muon's rest are AdamW's, but for the decay, which is of both.
Optimizer make_optimizer(const OptimizerOptions& options);

/// Throws UsageError for a number that was given and that the optimizer does not have.
void refuse_unused(const OptimizerOptions& options);

}  // namespace aliquot
