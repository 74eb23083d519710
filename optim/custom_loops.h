#pragma once
// Function tables through which the update calls a custom rule whose type is erased.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "optim/update/update_host.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The functions of a rule type R. `constants` points to an R.
struct CustomLoops {
  int state_count;
  /// Returns the host loops for an instruction set.
  const RunsOfRule& (*host)(Isa);
  /// Calls R::at() and constructs the result at `to`.
  void (*at)(void* to, const void* constants, float lr_scale, float decay_scale);
  /// Calls R::update().
  float (*update)(const void* constants, float weight, float gradient, float* state);
};

/// The data that all copies of a CustomOptimizer share.
struct CustomDescription {
  std::string name;
  double lr;
  std::vector<std::string_view> state_names;  // these views refer to strings of static lifetime
  std::function<CustomRule(double lr, int64_t step)> rule_at;
};

/// Creates an optimizer from its description. Throws UsageError in the same cases as custom_optimizer().
CustomOptimizer described(CustomDescription description);

}  // namespace aliquot
#pragma GCC visibility pop
