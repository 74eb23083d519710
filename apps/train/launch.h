#pragma once
// Starts the ranks of a command.

#include <functional>

#include "apps/options/train_options.h"
#include "kernels/system/error.h"
#include "sharding/world.h"

namespace aliquot {

/// Returns --ranks if given. Otherwise returns the number of GPUs, or 1 without a GPU or with --device host.
int default_rank_count(const TrainOptions& options);

/// Runs `body` on every rank, with the resolved options. Returns the exit code of rank 0. Under a launcher, returns
/// that of this process. Throws what World::run() throws, and UsageError if the number of ranks or the options do not
/// fit together.
ExitCode run_on_ranks(const TrainOptions& options, const std::function<ExitCode(World&, const TrainOptions&)>& body);

}  // namespace aliquot
