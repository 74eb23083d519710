#pragma once
// Reading the weights that another program saved into the shards of any world.

#include <filesystem>

#include "checkpoint/load.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Fills the tensors "parameters/..." of `state`, copies included, from the files; the rest is not touched. Collective;
/// each rank reads its own ranges. Throws on every rank the same: UsageError for files that are absent or malformed, and,
/// listing all of them, for tensors that are missing (unless allowed: zeros), left over or of another shape.
/// The report's `missing` and `extra` are what became zero and what the files hold that is no parameter.
LoadReport load_weights(const State& state, Communicator& communicator, const std::filesystem::path& path,
                        const LoadOptions& options = {});

}  // namespace aliquot
#pragma GCC visibility pop
