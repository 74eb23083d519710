#pragma once
// Declarations shared by the updates of all devices. Internal to optim/.

#include "optim/update/update.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The results of update_kernels() for hosts and for GPUs.
const UpdateKernels& host_update_kernels();
const UpdateKernels& cuda_update_kernels();

/// Throws std::logic_error if a dtype is not supported, or not with this rule.
void check_dtypes(const UpdateArgs& args, const Rule& rule);

}  // namespace aliquot
#pragma GCC visibility pop
