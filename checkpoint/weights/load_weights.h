#pragma once
// Loads weights that another program saved, into the shards of any number of ranks.

#include <filesystem>

#include "checkpoint/load.h"
#include "sharding/comm/communicator.h"
#include "sharding/state.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Reads the tensors "parameters/..." of `state` from safetensors files, including the pieces marked as copies. Leaves
/// other tensors, the step and the scalars unchanged. Collective. Each rank reads only the ranges of its own pieces.
///
/// Throws the same UsageError on every rank if a file is absent or malformed, or if a tensor in it is unknown or its
/// shape differs from that in `state`. Missing tensors are also an error, unless `options.allow_missing` is set. If it
/// is, the load fills them with zeros. In the report, `missing` lists these tensors, and `extra` the tensors of the
/// files that are not parameters.
LoadReport load_weights(const State& state, Communicator& communicator, const std::filesystem::path& path,
                        const LoadOptions& options = {});

}  // namespace aliquot
#pragma GCC visibility pop
