// Loads where a run starts: a checkpoint, or weights.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/console.h"
#include "apps/train/checkpoints/checkpoint_keeper.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/difference.h"
#include "checkpoint/load.h"
#include "checkpoint/weights/weights.h"

namespace aliquot {
namespace {

constexpr std::string_view kParameters = "parameters/";

/// The options whose values in the checkpoint differ from this run's: "seed (there 1, here 2)".
std::vector<std::string> other_options(const State& state, const std::map<std::string, Scalar>& here) {
  std::vector<std::string> other;
  for (const auto& [name, value] : here) {
    const auto found = state.scalars.find(name);
    if (found != state.scalars.end() && found->second != value)
      other.push_back(fmt::format("{} (there {}, here {})", name, describe(found->second), describe(value)));
  }
  return other;
}

/// The first few, and how many more there are.
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMostNamed = 6;
  const size_t named = std::min(names.size(), kMostNamed);
  const std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(named), ", "));
  return named == names.size() ? text : fmt::format("{} and {} more", text, names.size() - named);
}

/// Warns of what differs from the saved state.
void report_option_changes(const LoadReport& report) {
  const std::string path = report.path.string();
  if (!report.missing.empty()) warn("{} lacks {}; they start as zeros.", path, some_of(report.missing));
  if (!report.converted.empty()) warn("converted from {}: {}", path, fmt::join(report.converted, ", "));
}

std::optional<LoadReport> load_to_resume(const TrainContext& context, State& state, const LoadOptions& how) {
  const TrainOptions& options = context.options();
  Communicator& communicator = context.world().communicator();
  try {
    if (options.resume == "auto") return load_newest(state, communicator, options.checkpoint_dir, how);
    return load(state, communicator, require_checkpoint(options.resume), how);
  } catch (const UsageError& error) {
    throw UsageError(
        fmt::format("--resume {}: {}. Give --model and its shape as they were (aliquot checkpoint show), or "
                    "--allow-missing where tensors are missing.",
                    options.resume, error.what()));
  }
}

/// Compares the fields of the shape that the shapes of tensors do not determine.
void refuse_other_shape(const TrainOptions& options, const State& state, const std::filesystem::path& path) {
  std::vector<std::string> differences;
  std::set<std::string> remedies;
  for (const ShapeDifference& one : shape_differences(state.scalars, model_shape(options))) {
    const std::string there = describe(one.there);
    differences.push_back(fmt::format("{} is {} there and {} here", one.name, there, describe(one.here)));
    const bool has_flag = one.name == "heads" || one.name == "context";
    remedies.insert(has_flag ? fmt::format("--{} {}", one.name, there)
                             : "--model with the config.json that checkpoint export writes");
  }
  if (differences.empty()) return;
  throw UsageError(fmt::format("{} was saved with another model: {}: give {}.", path.string(),
                               fmt::join(differences, ", "), fmt::join(remedies, " and ")));
}

/// Rank 0's, once a run was resumed. `other`: options that differ from those of the run that was saved.
void report_resumed(const TrainContext& context, const LoadReport& report, const std::vector<std::string>& other) {
  const TrainOptions& options = context.options();
  for (const std::string& refused : report.refused) warn("{}", refused);
  report_option_changes(report);
  if (!report.extra.empty())
    warn("{} has {} besides, which no optimizer here needs.", report.path.string(), some_of(report.extra));
  if (!other.empty()) warn("not as in the run that is resumed, so the result differs: {}", fmt::join(other, ", "));
  if (options.engine.quantize_gradients) {
    warn(
        "--quantize {}: what rounding had left of the gradients is in no checkpoint, so the result differs a "
        "little from that of a run that was not interrupted.",
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
  if (is_weights_path(options.init)) return load_weights(weights, communicator, options.init, how);
  const auto path = find_checkpoint(options.init);
  if (!path) throw UsageError("--init " + options.init + ": there are neither safetensors weights nor a checkpoint.");
  LoadReport report = load(weights, communicator, *path, how);
  refuse_other_shape(options, weights, *path);
  for (const std::string& name : report.extra) {
    if (name.starts_with(kParameters)) throw UsageError("--init " + options.init + ": " + name + " is only there.");
  }
  return report;
}

}  // namespace

// Removes the leftovers of other runs while it holds the claim.
void CheckpointKeeper::claim_directory() {
  const std::string& directory = context_.options().checkpoint_dir;
  std::string problem;
  if (!directory.empty() && context_.is_rank_zero()) {
    try {
      claim_.emplace(directory);
      for (const std::string& done : sweep_leftovers(directory)) warn("{}", done);
    } catch (const UnavailableError& error) {
      problem = error.what();
    }
  }
  problem = context_.world().communicator().gather_objects(problem).front();
  if (!problem.empty()) throw UnavailableError(problem);
}

bool CheckpointKeeper::load_initial_state(RunState& state) {
  claim_directory();
  const bool resumed = context_.options().resume != "none" && resume(state);
  if (!resumed && !context_.options().init.empty()) load_initial_weights();
  return resumed;
}

bool CheckpointKeeper::resume(RunState& run) {
  const TrainOptions& options = context_.options();
  Engine& engine = context_.engine();
  State state = engine.state();
  const LoadOptions how{.allow_missing = options.allow_missing,
                        .allow_rounding = true,
                        .state_is_fresh = true,
                        .ledger = &context_.world().device().ledger(),
                        .replaced = ReplacedState{"optimizer/", "optimizer", option_text(options, "optimizer")}};
  const auto report = load_to_resume(context_, state, how);
  if (!report) return false;
  refuse_other_shape(options, state, report->path);
  const auto other = other_options(state, run_scalars(options, data_tokens_));
  const ResumePoint from = resume_point(state);
  engine.adopt(state);
  run.sequences_consumed = from.sequences_consumed;
  saved_step_ = engine.step_count();
  if (run.spikes && from.loss_statistics) run.spikes->restore(*from.loss_statistics);
  if (context_.is_rank_zero()) report_resumed(context_, *report, other);
  return true;
}

void CheckpointKeeper::load_initial_weights() {
  const TrainOptions& options = context_.options();
  State state = context_.engine().state(), weights;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.path.starts_with(kParameters)) weights.tensors.push_back(tensor);
  }
  const LoadReport report = load_init(context_, weights);
  context_.engine().adopt(state);  // with its own step and scalars: a new run begins
  if (!context_.is_rank_zero()) return;
  report_option_changes(report);
  if (!options.quiet) write_stdout("started from {}: {}\n", report.path.string(), numbers_text(model_shape(options)));
}

}  // namespace aliquot
