#pragma once
// What the devices' updates share. For optim's own sources.

#include "optim/update/update.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// What update_kernels() gives for hosts and for GPUs.
const UpdateKernels& host_update_kernels();
const UpdateKernels& cuda_update_kernels();

/// Throws std::logic_error for a dtype that no update takes, or not for this rule.
void check_dtypes(const UpdateArgs& args, const Rule& rule);

}  // namespace aliquot
#pragma GCC visibility pop
