// aliquot train: parses and checks the command line, and starts the ranks.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <system_error>
#include <unistd.h>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/data/token_source.h"
#include "apps/models/tensor_part.h"
#include "apps/options/deepspeed.h"
#include "apps/train/init_shape.h"
#include "apps/train/launch.h"
#include "apps/train/stop_request.h"
#include "apps/train/train_run.h"
#include "apps/train/train_settings.h"
#include "checkpoint/checkpoint_directory.h"
#include "engine/run/fault_injector.h"
#include "engine/run/memory/guard_range.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

// Checks before training that `directory` is writable. `given` is the option with its value, for the message.
void require_writable(const std::string& given, const std::string& directory, std::error_code failure = {}) {
  if (!failure && !std::filesystem::is_directory(directory, failure) && !failure)
    failure = std::make_error_code(std::errc::not_a_directory);
  if (!failure && access(directory.c_str(), W_OK) != 0) failure = {errno, std::generic_category()};
  if (failure) throw UsageError(fmt::format("{}: the directory cannot be written: {}.", given, failure.message()));
}

// Checks before training that the file is writable, because it is written only at the end. Removes the file if the
// check created it. Does not check pipes and devices, because opening them may block.
void require_writable_file(const std::string& given, const std::string& path) {
  std::error_code unknown;
  const auto status = std::filesystem::status(path, unknown);
  if (std::filesystem::is_other(status)) return;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
  if (file < 0) throw UsageError(fmt::format("{}: the file cannot be written: {}.", given, std::strerror(errno)));
  close(file);
  if (!std::filesystem::exists(status)) unlink(path.c_str());
}

void make_checkpoint_directory(const std::string& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  require_writable("--checkpoint-dir " + directory, directory, failure);
}

void check_output_paths(const TrainOptions& options) {
  const EngineOptions& engine = options.engine;
  for (const auto& [flag, directory] : {std::pair{"--offload", &engine.offload_state_to},
                                        std::pair{"--offload-parameters", &engine.offload_parameters_to}}) {
    if (!directory->empty()) require_writable(fmt::format("{} disk:{}", flag, *directory), *directory);
  }
  if (!options.trace.empty()) require_writable_file("--trace " + options.trace, options.trace);
}

// Runs the checks that do not need the world.
void check_before_launch(const TrainOptions& options) {
  injected_fault(fault_points());
  TrainOptions copy = options;
  // The next options depend on the device or on the number of ranks, and a launcher may start a different number. They
  // are checked after the launch.
  copy.products = OperandRounding::kNone;
  copy.attention = AttentionKernels::kOwn;
  copy.global_batch.reset();
  copy.engine.pipeline = copy.engine.tensor = 1;
  check_tensor_group(model_shape(options), tensor_group(options, options.engine, 0));
  resolve(copy, default_rank_count(options), false);
  if (options.resume == "none" && !options.checkpoint_dir.empty() &&
      !list_checkpoints(options.checkpoint_dir).empty()) {
    throw UsageError("--checkpoint-dir " + options.checkpoint_dir +
                     " already holds checkpoints: use --resume auto to continue, or choose another directory.");
  }
  check_output_paths(options);
  if (!options.checkpoint_dir.empty() && !options.dry_run) make_checkpoint_directory(options.checkpoint_dir);
}

std::unique_ptr<TokenSource> open_data(const TrainOptions& options) {
  if (options.data.empty()) return make_synthetic_language(model_shape(options).vocabulary);
  return open_token_sources(options.data);
}

ExitCode train_rank(World& world, const TrainOptions& options, const TrainInput& input) {
  TrainRun run(world, options, input);
  if (!options.dry_run) return run.run();
  run.print_plan();
  return ExitCode::kDone;
}

}  // namespace

CommandHelp train_help() {
  TrainOptions options;
  return {.name = "train",
          .summary = "train a model, sharded over ranks",
          .usage = "[--option value ...]",
          .text =
              "  aliquot train --zero-stage 3 --ranks 4          4 ranks as threads, no launcher\n"
              "  mpirun -n 4 aliquot train --zero-stage 2        4 processes\n\n"
              "Sizes accept the suffixes KiB, MiB, GiB, KB, MB and GB; counts accept k, m, b and t. Defaults are "
              "in parentheses.",
          .options = help_options(train_option_table(options)),
          .subcommands = {},
          .exit_codes = {0, 1, 2, 3, 4, 5, 75, 137}};
}

int run_train(const Arguments& arguments) {
  hold_user_signals();
  TrainOptions options;
  std::vector<std::string> remarks = parse_train_arguments(options, arguments);
  std::ranges::move(read_init_shape(options), std::back_inserter(remarks));
  check_resumed_adapters(options);
  check_before_launch(options);
  std::ranges::move(options.remarks, std::back_inserter(remarks));
  if (launched_rank() == 0) {
    for (const std::string& remark : remarks) warn("{}", remark);
  }
  const std::unique_ptr<TokenSource> data = open_data(options);
  std::unique_ptr<TokenSource> evaluated;
  if (!options.eval_data.empty()) evaluated = open_token_sources(options.eval_data, "--eval-data");
  if (launched_rank() == 0 && !options.init.empty()) {
    if (const std::string warning = tokenizer_warning(*data, options.init); !warning.empty()) warn("{}", warning);
  }
  const TrainText text = train_text(options, *data);
  install_stop_handlers(started_by());
  install_fault_names();
  const ExitCode code = run_on_ranks(options, [&](World& world, const TrainOptions& resolved) {
    return train_rank(world, resolved, {*data, evaluated.get(), text});
  });
  return static_cast<int>(code);
}

}  // namespace aliquot
