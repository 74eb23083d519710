#pragma once
// Digests of training state on GPUs: UpdateKernels::compare and UpdateKernels::record.

#include "optim/update/update.h"

namespace aliquot {

/// Enqueues the comparison of digests. A difference is stored in args.check->found.
void compare_digests(Stream& stream, const UpdateArgs& args, int64_t reported_step);
/// Enqueues the computation of digests.
void record_digests(Stream& stream, const UpdateArgs& args);

}  // namespace aliquot
