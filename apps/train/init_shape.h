#pragma once
// Finds the shape of the model whose weights a run starts from.

#include <optional>
#include <string>
#include <vector>

#include "apps/checkpoints/saved_adapters.h"
#include "apps/options/train_options.h"

namespace aliquot {

/// Sets options.file_shape to the model of --init: from the config.json next to weights, or from the checkpoint. Leaves
/// it unset if neither describes a model. Also leaves it unset if the path of --init does not exist; loading the
/// weights reports that error. Returns warnings. Throws UsageError if the file is not supported or an option
/// contradicts it, and CheckpointError if the manifest is corrupt.
std::vector<std::string> read_init_shape(TrainOptions& options);

/// Throws UsageError if the checkpoint of --resume contains other adapters than those of --lora. Does nothing if there
/// is no checkpoint, or if its manifest is damaged. Call it after read_init_shape().
void check_resumed_adapters(const TrainOptions& options);
/// The same check for the adapters that a checkpoint records; empty: none.
void require_same_lora(const TrainOptions& options, const std::optional<SavedAdapters>& saved);

}  // namespace aliquot
