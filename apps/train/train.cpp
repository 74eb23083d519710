// aliquot train: parses and checks the command line, and starts the ranks.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/commands.h"
#include "apps/console.h"
#include "apps/data/token_source.h"
#include "apps/models/hugging_face/config.h"
#include "apps/models/tensor_part.h"
#include "apps/options/deepspeed.h"
#include "apps/train/checkpoints/with_init_name.h"
#include "apps/train/stop_request.h"
#include "apps/train/train_run.h"
#include "apps/train/train_settings.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights/safetensors.h"
#include "checkpoint/weights/weights.h"
#include "engine/run/fault_injector.h"
#include "engine/run/memory/guard_range.h"
#include "kernels/device/device.h"
#include "kernels/system/error.h"
#include "sharding/flight/flight_recorder.h"

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

/// Returns --ranks if given. Otherwise returns the number of GPUs, or 1 without a GPU or with --device host.
int default_rank_count(const TrainOptions& options) {
  const int gpus = options.world.device == DeviceChoice::kHost ? 0 : cuda_device_count();
  return static_cast<int>(options.ranks.value_or(std::max(1, gpus)));
}

// Runs the checks that do not need the world.
void check_before_launch(const TrainOptions& options) {
  injected_fault(fault_points());
  TrainOptions copy = options;
  // The next options depend on the number of ranks, and a launcher may start a different number. They are checked after
  // the launch.
  copy.global_batch.reset();
  copy.engine.pipeline = copy.engine.tensor = 1;
  check_tensor_group(model_shape(options), tensor_group(options, options.engine.tensor, 0));
  resolve(copy, default_rank_count(options), false);
  if (options.resume == "none" && !options.checkpoint_dir.empty() &&
      !list_checkpoints(options.checkpoint_dir).empty()) {
    throw UsageError("--checkpoint-dir " + options.checkpoint_dir +
                     " already holds checkpoints: use --resume auto to continue, or choose another directory.");
  }
  check_output_paths(options);
  if (!options.checkpoint_dir.empty() && !options.dry_run) make_checkpoint_directory(options.checkpoint_dir);
}

constexpr ShapeNames kNamesOfCheckpoints{"layers",  "width",      "heads",        "kv-heads",  "hidden",
                                         "context", "vocabulary", "norm epsilon", "RoPE theta"};

void set_file_shape(TrainOptions& options, const ModelShape& shape, const std::string& where, const ShapeNames& names) {
  check_consistent(options, shape, where, names, options.allow_missing);
  options.file_shape = shape;
  options.file_head_width = 0;
}

std::string options_define_model(const TrainOptions& options, const std::string& why) {
  return fmt::format("--init {}: {}, so the options define the model: {}.", options.init, why,
                     numbers_text(model_shape(options)));
}

/// Throws UsageError if `path` ends in .safetensors and is neither a safetensors file nor a directory.
void refuse_unreadable_weights(const std::filesystem::path& path) {
  std::error_code error;
  if (path.extension() != ".safetensors" || std::filesystem::is_directory(path, error)) return;
  with_init_name([&] { return SafetensorsFile::open(FileSystem::system(), path); });
}

std::vector<std::string> read_config_shape(TrainOptions& options) {
  const auto path = find_config_near(options.init);
  if (!path) {
    refuse_unreadable_weights(options.init);  // before the warning, which only matters for a file that can be read
    return {options_define_model(options, "found no config.json next to the weights")};
  }
  const ModelConfig config = read_model_config(*path);
  set_file_shape(options, config.shape, path->string(), config.names);
  return config.remarks;
}

std::vector<std::string> read_checkpoint_shape(TrainOptions& options, const std::filesystem::path& path) {
  const std::string where = path.string();
  const Manifest manifest =
      parse_manifest(read_manifest_text(FileSystem::system(), path), (path / kManifestFile).string());
  const auto shape = saved_shape(manifest, where);
  if (!shape) return {};  // loading the tensors will report the error
  if (!records_shape(manifest.scalars))
    return {options_define_model(options, "the checkpoint does not record the number of heads")};
  set_file_shape(options, *shape, where, kNamesOfCheckpoints);
  return {};
}

/// Sets options.file_shape to the model of --init: from the config.json next to weights, or from the checkpoint. Leaves
/// it unset if neither describes a model. Also leaves it unset if the path of --init does not exist; loading the
/// weights reports that error. Returns warnings. Throws UsageError if the file is not supported or an option
/// contradicts it, and CheckpointError if the manifest is corrupt.
std::vector<std::string> read_init_shape(TrainOptions& options) {
  if (options.init.empty()) return {};
  if (is_weights_path(options.init)) return read_config_shape(options);
  const auto path = find_checkpoint(options.init);
  return path ? read_checkpoint_shape(options, *path) : std::vector<std::string>{};
}

std::unique_ptr<TokenSource> open_data(const TrainOptions& options) {
  if (options.data.empty()) return make_synthetic_language(model_shape(options).vocabulary);
  return open_token_sources(options.data);
}

/// Called if a rank's thread does not return after another rank failed, for example because it waits for a disk. Ends
/// the process, because a single thread cannot be ended safely. `first` is the error of the failed rank.
[[noreturn]] void exit_with_stuck_threads(std::exception_ptr first, const std::string& who) {
  write_flight_records(who + " did not return after another rank failed");
  auto code = ExitCode::kFault;
  try {
    std::rethrow_exception(first);
  } catch (const Error& error) {
    code = error.exit_code();
    warn("{}", error.what());
  } catch (const std::exception& error) {
    warn("{}", error.what());
  }
  warn("{} did not return after another rank failed: ending the process.", who);
  std::fflush(stdout);
  _exit(static_cast<int>(code));
}

void refuse_other_rank_count(const TrainOptions& options, int rank_count) {
  if (!options.ranks || *options.ranks == rank_count) return;
  if (rank_count == 1) {
    throw UsageError(fmt::format(
        "--ranks {0} was given, but this program is the only process of --world mpi: start it with mpirun -n {0}, or "
        "use --world threads.",
        *options.ranks));
  }
  throw UsageError(fmt::format("--ranks {} was given, but the launcher started {} ranks: leave --ranks out.",
                               *options.ranks, rank_count));
}

ExitCode train_rank(World& world, TrainOptions options, const TokenSource& data, const TokenSource* evaluated) {
  refuse_other_rank_count(options, world.rank_count());
  resolve(options, world.rank_count(), world.device().kind() == DeviceKind::kCuda);
  check_same_options(world, options);
  TrainRun run(world, options, data, evaluated);
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
  check_before_launch(options);
  std::ranges::move(options.remarks, std::back_inserter(remarks));
  if (launched_rank() == 0) {
    for (const std::string& remark : remarks) warn("{}", remark);
  }
  const std::unique_ptr<TokenSource> data = open_data(options);
  std::unique_ptr<TokenSource> evaluated;
  if (!options.eval_data.empty()) evaluated = open_token_source(options.eval_data, "--eval-data");
  install_stop_handlers(started_by());
  install_fault_names();
  ExitCode code = ExitCode::kDone;
  WorldOptions launch_options = world_options(options);
  launch_options.on_stuck = exit_with_stuck_threads;
  limit_wait_at_exit(launch_options.timeout_seconds);
  World::run(
      default_rank_count(options),
      [&](World& world) {
        const ExitCode own = train_rank(world, options, *data, evaluated.get());
        if (world.rank() == 0 || launched_process_count() > 1) code = own;
      },
      launch_options);
  return static_cast<int>(code);
}

}  // namespace aliquot
