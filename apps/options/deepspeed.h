#pragma once
// A DeepSpeed configuration as options of ours.

#include <string>
#include <vector>

#include "apps/options/train_options.h"

namespace aliquot {

/// Sets what the file says. What it omits takes DeepSpeed's default where that differs from ours, "auto" takes ours. Returns
/// the keys that are understood and have no meaning here. Throws UsageError, naming the file and the key, for a key that is
/// unknown, a value that will not do, and a setting that changes the training and is not to be had here.
std::vector<std::string> apply_deepspeed_file(TrainOptions& options, const std::string& path);

/// What `aliquot train` was told: the DeepSpeed file first, then the configuration file, then the command line, so that
/// each wins over the one before. Returns what is to be said of it, a sentence each.
std::vector<std::string> parse_train_arguments(TrainOptions& options, const std::vector<std::string>& arguments);

}  // namespace aliquot
