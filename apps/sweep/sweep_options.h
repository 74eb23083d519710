#pragma once
// The options of `aliquot sweep`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/train_options.h"

namespace aliquot {

/// The runs of a sweep and their common options.
struct SweepOptions {
  std::vector<std::string> models = {"gpt2-nano"}, stages = {"0", "1", "2", "3"};
  std::vector<int64_t> ranks = {1, 2};
  int64_t steps = 3;
  std::string out = "results", launcher, config;
  std::optional<int64_t> device_memory;  // the memory limit in the chart; if unset, the value that the runs record

  TrainOptions common;                       // options of all runs; model, ZeRO stage, ranks and steps are not used
  std::vector<std::string> train_arguments;  // the same options as arguments of `aliquot train`
};

/// One run of a sweep.
struct SweepCase {
  std::string model;
  int zero_stage = 0;
  int64_t ranks = 1;

  /// The base name of the run's files, for example "gpt2-nano-stage2-ranks4".
  std::string name() const;
};

/// The table of the sweep's own options and of those of `aliquot train` that it accepts. `options` must outlive the
/// table and must not move.
OptionTable sweep_option_table(SweepOptions& options);

/// Throws UsageError, with the option to use instead, if `arguments` contain an option of `aliquot train` that a sweep
/// does not accept.
void refuse_excluded_options(const OptionTable& table, const std::vector<std::string>& arguments);

/// All combinations, ordered by model, then ranks, then ZeRO stage.
std::vector<SweepCase> cases_of(const SweepOptions& options);

/// The program and arguments of one run. The run writes its metrics to the file `metrics`.
std::vector<std::string> command_of(const SweepOptions& options, const SweepCase& one, const std::string& program,
                                    const std::string& metrics);

}  // namespace aliquot
