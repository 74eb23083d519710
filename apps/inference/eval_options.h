#pragma once
// The options of `aliquot eval`.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/options/train_options.h"
#include "engine/options/option_table.h"

namespace aliquot {

struct EvalOptions {
  EvalOptions();

  TrainOptions run;
  std::string path;       // of the weights
  std::string base;       // of the weights to which adapters at `path` belong
  int64_t sequences = 0;  // 0: all
  std::string config;     // the parser reads this file
};

/// `options` must outlive the table.
OptionTable eval_option_table(EvalOptions& options);

/// Parses the arguments of `aliquot eval`. Throws UsageError, for example if a required option is missing.
EvalOptions parse_eval_arguments(const std::vector<std::string>& arguments);

}  // namespace aliquot
