#pragma once
// Runs a custom rule on a GPU. For *.cu files.

#include "optim/custom_rule.h"
#include "optim/update/update_cuda.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Returns a function that launches the update of rule R. Pass it to custom_optimizer<R>() as `cuda`. R::at() and
/// R::update() must be declared ALIQUOT_HOST_DEVICE. Compile the file with --fmad=false and
/// -Xcompiler=-ffp-contract=off. In CMake, aliquot_rule_sources(FILE) sets these options.
template <typename R>
CustomCuda custom_cuda() {
  return [](Stream& stream, const UpdateArgs& args, const UpdateStep& step, const void* constants) {
    launch_update(stream, args, step, *static_cast<const R*>(constants));
  };
}

}  // namespace aliquot
#pragma GCC visibility pop
