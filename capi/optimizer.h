#pragma once
// An optimizer by its name and the numbers that were given, of those it has.

#include <optional>
#include <string>

#include "optim/optimizer.h"

namespace aliquot::capi {

struct OptimizerChoice {
  std::string name = "adamw";
  std::optional<float> lr, beta1, beta2, eps, weight_decay, momentum, muon_lr;
  std::optional<bool> nesterov;

  /// Throws UsageError for a name that is not known, and for a number that the optimizer does not have.
  Optimizer make() const;
};

}  // namespace aliquot::capi
