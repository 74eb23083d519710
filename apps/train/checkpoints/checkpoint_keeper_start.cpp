// Loads the initial state of a run from a checkpoint or from weights.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

#include "apps/checkpoints/base_weights.h"
#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/console.h"
#include "apps/train/checkpoints/checkpoint_keeper.h"
#include "apps/train/checkpoints/with_init_name.h"
#include "apps/train/init_shape.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/difference.h"
#include "checkpoint/load.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/weights/weights.h"

namespace aliquot {
namespace {

constexpr std::string_view kParameters = "parameters/";

/// The options that differ between checkpoint and run, for example "seed (checkpoint 1, this run 2)".
std::vector<std::string> changed_options(const State& state, const std::map<std::string, Scalar>& of_run) {
  std::vector<std::string> changed;
  for (const auto& [name, value] : of_run) {
    const auto found = state.scalars.find(name);
    if (found != state.scalars.end() && found->second != value)
      changed.push_back(fmt::format("{} (checkpoint {}, this run {})", name, describe(found->second), describe(value)));
  }
  return changed;
}

/// The first few names and the number of the others: "a, b and 3 more".
std::string abbreviated_list(const std::vector<std::string>& names) {
  constexpr size_t kMaxNamed = 6;
  const size_t named = std::min(names.size(), kMaxNamed);
  const std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(named), ", "));
  return named == names.size() ? text : fmt::format("{} and {} more", text, names.size() - named);
}

/// Warns of tensors that were missing from the file or were converted.
void report_tensor_changes(const LoadReport& report) {
  const std::string path = report.path.string();
  if (!report.missing.empty())
    warn("{} does not contain {}: these tensors start as zeros.", path, abbreviated_list(report.missing));
  if (!report.converted.empty()) warn("tensors of {} were converted: {}", path, abbreviated_list(report.converted));
}

/// Loads the checkpoint that --resume names. Adds a remedy to the message of a CheckpointError.
LoadReport load_given(State& state, Communicator& communicator, const std::filesystem::path& path,
                      const LoadOptions& how) {
  try {
    return load(state, communicator, path, how);
  } catch (const CheckpointError& error) {
    throw CheckpointError(
        fmt::format("{}: resume an older checkpoint, or use --resume auto, which skips checkpoints that are damaged",
                    error.what()));
  }
}

std::optional<LoadReport> load_to_resume(const TrainContext& context, State& state, const LoadOptions& how) {
  const TrainOptions& options = context.options();
  Communicator& communicator = context.world().communicator();
  try {
    if (options.resume == "auto") return load_newest(state, communicator, options.checkpoint_dir, how);
    return load_given(state, communicator, require_checkpoint(options.resume), how);
  } catch (const UsageError& error) {
    if (std::string_view(error.what()).find(kSavedWithAnother) != std::string_view::npos) {
      throw UsageError(
          fmt::format("--resume {}: {}. Use the --optimizer of the saved run, --allow-missing to start its state as "
                      "zeros, or --init to start a new run from the weights.",
                      options.resume, error.what()));
    }
    throw UsageError(
        fmt::format("--resume {}: {}. Use the model of the saved run (see aliquot checkpoint show), or --allow-missing "
                    "if tensors are missing.",
                    options.resume, error.what()));
  }
}

/// Compares the model's shape in the checkpoint with that in `options`. Compares only the fields that the shapes of
/// tensors do not determine, such as the number of heads. Throws UsageError if a field differs.
void check_shape(const TrainOptions& options, const State& state, const std::filesystem::path& path) {
  std::vector<std::string> differences;
  std::set<std::string> remedies;
  for (const ShapeDifference& one : shape_differences(state.scalars, model_shape(options))) {
    const std::string saved = describe(one.saved);
    differences.push_back(fmt::format("{} (checkpoint {}, this run {})", one.name, saved, describe(one.given)));
    const bool has_flag = one.name == "heads" || one.name == "context";
    remedies.insert(has_flag ? fmt::format("--{} {}", one.name, saved)
                             : "--model with the config.json that checkpoint export writes");
  }
  if (differences.empty()) return;
  throw UsageError(fmt::format("{} was saved with a different model: {}: use {}.", path.string(),
                               fmt::join(differences, ", "), fmt::join(remedies, " and ")));
}

/// Prints the messages of a resume, on rank 0. `changed` lists the options that differ from those of the saved run.
void report_resumed(const TrainContext& context, const LoadReport& report, const std::vector<std::string>& changed) {
  const TrainOptions& options = context.options();
  for (const std::string& refused : report.refused) warn("{}", refused);
  report_tensor_changes(report);
  if (!report.extra.empty()) {
    warn("{} also contains {}, which the optimizer of this run does not use.", report.path.string(),
         abbreviated_list(report.extra));
  }
  if (!changed.empty())
    warn("options differ from those of the saved run, so results will differ: {}", fmt::join(changed, ", "));
  if (options.engine.quantize_gradients) {
    warn(
        "--quantize {}: checkpoints do not contain the error-feedback residuals of gradients, so results differ "
        "slightly from those of an uninterrupted run.",
        option_text(options, "quantize"));
  }
  if (!options.quiet) write_stdout("resumed {} at step {}\n", report.path.string(), context.engine().step_count());
}

/// Reads the weights of --init into `weights`.
LoadReport load_init(const TrainContext& context, State& weights) {
  const TrainOptions& options = context.options();
  Communicator& communicator = context.world().communicator();
  const LoadOptions how{.allow_missing = options.allow_missing,
                        .allow_extra = true,
                        .allow_rounding = true,
                        .state_is_fresh = true,
                        .ledger = &context.world().device().ledger()};
  if (is_weights_path(options.init))
    return with_init_name([&] { return load_weights(weights, communicator, options.init, how); });
  // Another run may save checkpoints in the directory, so that ranks find different ones.
  const auto found = find_checkpoint(options.init);
  const std::filesystem::path path = communicator.gather_objects(found ? found->string() : std::string()).front();
  if (path.empty())
    throw UsageError("--init " + options.init + ": expected safetensors weights or a checkpoint, found neither.");
  LoadReport report = load(weights, communicator, path, how);
  check_shape(options, weights, path);
  for (const std::string& name : report.extra) {
    if (name.starts_with(kParameters))
      throw UsageError("--init " + options.init + ": the checkpoint has " + name +
                       ", but the model of this run does not: set --model to the saved model.");
  }
  return report;
}

/// Loads the adapters of options.adapters. Throws UsageError if they belong to other weights than those of --init.
void load_adapters(const TrainContext& context) {
  const TrainOptions& options = context.options();
  Communicator& communicator = context.world().communicator();
  State adapters;
  for (const StateTensor& tensor : context.engine().state().tensors) {
    if (tensor.path.starts_with(kParameters) && is_adapter(tensor.path)) adapters.tensors.push_back(tensor);
  }
  const LoadReport report = load(adapters, communicator, options.adapters,
                                 {.allow_extra = true,
                                  .allow_rounding = true,
                                  .state_is_fresh = true,
                                  .ledger = &context.world().device().ledger()});
  const auto saved = saved_adapters(adapters.scalars, options.adapters);
  if (!saved) throw UsageError(fmt::format("{} does not record its adapters.", options.adapters));
  check_shape(options, adapters, report.path);
  require_same_base(*saved, report.path.string(), options.init,
                    digest_of_base(communicator, options.init, !model_shape(options).tied));
}

}  // namespace

State saved_part(State state, const TrainOptions& options) {
  if (options.lora.rank == 0) return state;
  std::erase_if(state.tensors, [](const StateTensor& tensor) {
    return tensor.path.starts_with(kParameters) && !is_adapter(tensor.path);
  });
  return state;
}

// Rank 0 claims the directory and removes files that interrupted saves left in it. A failure throws on all ranks.
void CheckpointKeeper::claim_directory() {
  const std::string& directory = context_.options().checkpoint_dir;
  std::string problem;
  if (!directory.empty() && context_.is_rank_zero()) {
    try {
      claim_.emplace(directory);
      for (const std::string& removed : sweep_leftovers(directory)) warn("{}", removed);
    } catch (const UnavailableError& error) {
      problem = error.what();
    }
  }
  problem = context_.world().communicator().gather_objects(problem).front();
  if (!problem.empty()) throw UnavailableError(problem);
}

bool CheckpointKeeper::load_initial_state(RunState& state) {
  claim_directory();
  const TrainOptions& options = context_.options();
  // A checkpoint of adapters does not contain their base.
  if (options.lora.rank > 0 && !options.init.empty()) {
    set_base(load_initial_weights(context_).string());
    return options.resume != "none" && resume(state);
  }
  const bool resumed = options.resume != "none" && resume(state);
  if (!resumed && !options.init.empty()) load_initial_weights(context_);
  return resumed;
}

/// Sets adapters_ if this run saves or resumes checkpoints. `path` is what was loaded: --init can be a directory of
/// checkpoints, in which a later checkpoint must not become the base.
void CheckpointKeeper::set_base(const std::string& path) {
  const TrainOptions& options = context_.options();
  if (options.checkpoint_dir.empty() && options.resume == "none") return;
  adapters_ = {options.lora, std::filesystem::absolute(path).lexically_normal().string(),
               digest_of_base(context_.world().communicator(), path, !model_shape(options).tied)};
}

bool CheckpointKeeper::resume(RunState& run) {
  const TrainOptions& options = context_.options();
  Engine& engine = context_.engine();
  State state = saved_part(engine.state(), options);
  const LoadOptions how{.allow_missing = options.allow_missing,
                        .allow_rounding = true,
                        .state_is_fresh = true,
                        .ledger = &context_.world().device().ledger(),
                        .replaced = ReplacedState{"optimizer/", "optimizer", option_text(options, "optimizer")}};
  const auto report = load_to_resume(context_, state, how);
  if (!report) return false;
  check_shape(options, state, report->path);
  const auto saved = saved_adapters(state.scalars, report->path.string());
  require_same_lora(options, saved);  // an older checkpoint may have been loaded than the one that was checked before
  if (saved && adapters_) require_same_base(*saved, report->path.string(), options.init, adapters_->base_digest);
  const auto changed = changed_options(state, run_scalars(options, data_));
  const ResumePoint from = resume_point(state);
  engine.adopt(state);
  run.sequences_consumed = from.sequences_consumed;
  saved_step_ = engine.step_count();
  if (run.spikes && from.loss_statistics) run.spikes->restore(*from.loss_statistics);
  if (context_.is_rank_zero()) report_resumed(context_, *report, changed);
  return true;
}

std::filesystem::path load_initial_weights(const TrainContext& context) {
  const TrainOptions& options = context.options();
  State state = context.engine().state(), weights;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.path.starts_with(kParameters) && !is_adapter(tensor.path)) weights.tensors.push_back(tensor);
  }
  const LoadReport report = load_init(context, weights);
  if (!options.adapters.empty()) load_adapters(context);
  context.engine().adopt(state);  // without the step and the scalars of --init: this is a new run
  if (!context.is_rank_zero()) return report.path;
  report_tensor_changes(report);
  if (!options.quiet) write_stdout("started from {}: {}\n", report.path.string(), numbers_text(model_shape(options)));
  return report.path;
}

}  // namespace aliquot
