#pragma once
// Runs a user's own rule on a GPU. For *.cu files.

#include "optim/custom_rule.h"
#include "optim/update/update_cuda.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// To be handed to custom_optimizer<R>(): launches R's update. R is as for custom_optimizer(), its at() and update()
/// marked ALIQUOT_HOST_DEVICE; compile the file with --fmad=false and
/// -Xcompiler=-ffp-contract=off, which aliquot_rule_sources(FILE) brings in CMake.
template <typename R>
CustomCuda custom_cuda() {
  return [](Stream& stream, const UpdateArgs& args, const UpdateStep& step, const void* constants) {
    launch_update(stream, args, step, *static_cast<const R*>(constants));
  };
}

}  // namespace aliquot
#pragma GCC visibility pop
