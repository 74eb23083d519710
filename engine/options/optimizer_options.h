#pragma once
// The choice of an optimizer and its hyperparameters.

#include <array>
#include <optional>

#include "engine/options/values.h"
#include "optim/optimizer.h"

namespace aliquot {

/// The built-in optimizers, in the order of kOptimizerNames.
enum class OptimizerKind : uint8_t { kAdamW, kAdam, kSgd, kLion, kAdamW8bit, kMuon };

constexpr EnumName<OptimizerKind> optimizer_word(OptimizerKind kind) {
  return {kOptimizerNames[static_cast<size_t>(kind)], kind};
}

/// The names of the optimizers, in the order in which --help lists them.
inline constexpr std::array kOptimizerWords{
    optimizer_word(OptimizerKind::kAdamW),     optimizer_word(OptimizerKind::kAdam),
    optimizer_word(OptimizerKind::kAdamW8bit), optimizer_word(OptimizerKind::kLion),
    optimizer_word(OptimizerKind::kSgd),       optimizer_word(OptimizerKind::kMuon)};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  // A hyperparameter that is not set has the default of the optimizer.
  std::optional<double> lr = {}, beta1 = {}, beta2 = {}, eps = {}, weight_decay = {}, momentum = {}, muon_lr = {};
  std::optional<bool> nesterov = {};
  std::optional<DType> muon_products = {};
};

/// Makes the optimizer. Ignores hyperparameters that it does not have. With Muon, lr, the betas and eps apply to the
/// AdamW that updates the other parameters. The weight decay applies to all parameters.
Optimizer make_optimizer(const OptimizerOptions& options);

/// Throws UsageError if a hyperparameter is set that the optimizer does not have.
void refuse_unused(const OptimizerOptions& options);

}  // namespace aliquot
