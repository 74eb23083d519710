#pragma once
// The choice of an optimizer and its hyperparameters.

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
  // Not set: the default of the optimizer.
  std::optional<double> lr = {}, beta1 = {}, beta2 = {}, eps = {}, weight_decay = {}, momentum = {}, muon_lr = {};
  std::optional<bool> nesterov = {};
};

/// Makes the optimizer. Ignores hyperparameters that it does not have. With Muon, lr, the betas and eps apply to the
/// AdamW that updates the other parameters. The weight decay applies to both.
Optimizer make_optimizer(const OptimizerOptions& options);

/// Throws UsageError if a hyperparameter is set that the optimizer does not have.
void refuse_unused(const OptimizerOptions& options);

}  // namespace aliquot
