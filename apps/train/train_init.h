#pragma once
// The model of --init.

#include <string>
#include <vector>

#include "apps/options/train_options.h"

namespace aliquot {

/// Sets options.described to the model of --init: from the config.json beside weights, or from the checkpoint. Leaves it
/// unset if neither describes a model, or nothing is at --init, which is an error only when the weights are read. Returns
/// warnings, a sentence each. Throws UsageError if the file is not supported or an option contradicts it, and CheckpointError
/// if the manifest is damaged.
std::vector<std::string> take_model_of_init(TrainOptions& options);

}  // namespace aliquot
