#pragma once
// What stands between the update and a rule whose type it does not know.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "optim/update/update_host.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The functions of a rule's type. `constants` point at a rule of that type.
struct CustomLoops {
  int state_count;
  /// The host's loops for an instruction set.
  const RunsOfRule& (*host)(Isa);
  /// R::at(), the new rule made at `to`, and R::update().
  void (*at)(void* to, const void* constants, float lr_scale, float decay_scale);
  float (*update)(const void* constants, float weight, float gradient, float* state);
};

/// What a CustomOptimizer shares between its copies.
struct CustomDescription {
  std::string name;
  double lr;
  std::vector<std::string_view> state_names;  // alive as long as the program
  std::function<CustomRule(double lr, int64_t step)> rule_at;
};

/// Throws UsageError as custom_optimizer() says.
CustomOptimizer described(CustomDescription description);

}  // namespace aliquot
#pragma GCC visibility pop
