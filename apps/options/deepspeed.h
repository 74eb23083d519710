#pragma once
// Translates a DeepSpeed configuration into options of `aliquot train`.

#include <string>
#include <vector>

#include "apps/options/train_options.h"

namespace aliquot {

/// Sets options from the file. A missing key gets DeepSpeed's default, and "auto" keeps Aliquot's default. Returns the
/// known keys that have no effect in Aliquot. Throws UsageError, naming the file and the key, for an unknown key, an
/// invalid value, or a setting that would change training and is not supported.
std::vector<std::string> apply_deepspeed_file(TrainOptions& options, const std::string& path);

/// Sets the options of `aliquot train` from the DeepSpeed file, then the configuration file, then the command line.
/// Later sources take precedence. Returns warnings. Throws UsageError.
std::vector<std::string> parse_train_arguments(TrainOptions& options, const std::vector<std::string>& arguments);

}  // namespace aliquot
