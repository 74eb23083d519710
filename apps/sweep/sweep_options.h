#pragma once
// What `aliquot sweep` can be told.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/train_options.h"

namespace aliquot {

/// Which runs, and what every one of them is told besides.
struct SweepOptions {
  std::vector<std::string> models = {"gpt2-nano"}, stages = {"0", "1", "2", "3"};
  std::vector<int64_t> ranks = {1, 2};
  int64_t steps = 3;
  std::string out = "results", launcher, config;
  std::optional<int64_t> device_memory;  // what a rank may have, in the picture; else what the runs say

  TrainOptions common;  // as the words below have set it; model, stage, ranks and steps are not looked at
  std::vector<std::string> train_arguments;  // words for `aliquot train`
};

/// One combination.
struct SweepCase {
  std::string model;
  int zero_stage = 0;
  int64_t ranks = 1;

  /// "gpt2-nano-stage2-ranks4": of its files.
  std::string name() const;
};

/// The sweep's own options, and those of `aliquot train` that it does not set itself. Bound to `options`, which must outlive
/// the table and stay where it is.
OptionTable sweep_option_table(SweepOptions& options);

/// Model by model, then by ranks, then by stage.
std::vector<SweepCase> cases_of(const SweepOptions& options);

/// The program and its arguments for one run that writes its metrics to `metrics`.
std::vector<std::string> command_of(const SweepOptions& options, const SweepCase& one, const std::string& program,
                                    const std::string& metrics);

}  // namespace aliquot
