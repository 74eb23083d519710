// Where a run starts: from a checkpoint, from weights, or anew.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_shape.h"
#include "apps/say.h"
#include "apps/train/quantize_words.h"
#include "apps/train/resume_point.h"
#include "apps/train/train_run.h"
#include "checkpoint/difference.h"
#include "checkpoint/find.h"
#include "checkpoint/load.h"
#include "checkpoint/weights.h"

namespace aliquot {
namespace {

constexpr std::string_view kParameters = "parameters/";

/// What the checkpoint says of the run that wrote it and this run has otherwise: "seed (there 1, here 2)".
std::vector<std::string> other_options(const State& state, const std::map<std::string, Scalar>& here) {
  std::vector<std::string> other;
  for (const auto& [name, value] : here) {
    const auto found = state.scalars.find(name);
    if (found != state.scalars.end() && found->second != value)
      other.push_back(fmt::format("{} (there {}, here {})", name, describe(found->second), describe(value)));
  }
  return other;
}

/// The first few, and how many there are besides.
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMostNamed = 6;
  const size_t named = std::min(names.size(), kMostNamed);
  const std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(named), ", "));
  return named == names.size() ? text : fmt::format("{} and {} more", text, names.size() - named);
}

/// What is not as it was saved.
void tell_changes(const LoadReport& report) {
  const std::string path = report.path.string();
  if (!report.missing.empty()) warn("{} lacks {}; they start as zeros.", path, some_of(report.missing));
  if (!report.converted.empty()) warn("converted from {}: {}", path, fmt::join(report.converted, ", "));
}

}  // namespace

// What others left is swept by one that knows that nobody is at work there.
void TrainRun::claim_directory() {
  std::string problem;
  if (!options_.checkpoint_dir.empty() && leads()) {
    try {
      claim_.emplace(options_.checkpoint_dir);
      for (const std::string& done : sweep_leftovers(options_.checkpoint_dir)) warn("{}", done);
    } catch (const UnavailableError& error) {
      problem = error.what();
    }
  }
  problem = world_.communicator().gather_objects(problem).front();
  if (!problem.empty()) throw UnavailableError(problem);
}

void TrainRun::find_start() {
  claim_directory();
  const bool resumed = options_.resume != "none" && resume();
  if (!resumed && !options_.init.empty()) start_from_weights();
  if (options_.resume != "none") begin_metrics(resumed);
}

std::optional<LoadReport> TrainRun::load_to_resume(State& state, const LoadOptions& how) {
  try {
    if (options_.resume == "auto") return load_newest(state, world_.communicator(), options_.checkpoint_dir, how);
    return load(state, world_.communicator(), checkpoint_at(options_.resume), how);
  } catch (const UsageError& error) {
    throw UsageError(
        fmt::format("--resume {}: {}. Give --model and its shape as they were (aliquot checkpoint show), or "
                    "--allow-missing where tensors are missing.",
                    options_.resume, error.what()));
  }
}

/// Compares the fields of the shape that the shapes of tensors do not determine.
void TrainRun::refuse_other_shape(const State& state, const std::filesystem::path& path) const {
  std::vector<std::string> differences;
  std::set<std::string> remedies;
  for (const ShapeDifference& one : shape_differences(state.scalars, model_shape(options_))) {
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

bool TrainRun::resume() {
  State state = engine_->state();
  const LoadOptions how{.allow_missing = options_.allow_missing,
                        .allow_rounding = true,
                        .state_is_fresh = true,
                        .ledger = &world_.device().ledger(),
                        .replaced = ReplacedState{"optimizer/", "optimizer", options_.optimizer}};
  const auto report = load_to_resume(state, how);
  if (!report) return false;
  refuse_other_shape(state, report->path);
  const auto other = other_options(state, run_scalars());
  const ResumePoint from = resume_point(state);
  engine_->adopt(state);
  consumed_ = from.sequences_consumed;
  saved_step_ = engine_->step_count();
  if (spikes_ && from.losses_seen) spikes_->go_on_from(*from.losses_seen);
  if (!leads()) return true;
  for (const std::string& refused : report->refused) warn("{}", refused);
  tell_changes(*report);
  if (!report->extra.empty())
    warn("{} has {} besides, which no optimizer here needs.", report->path.string(), some_of(report->extra));
  if (!other.empty()) warn("not as in the run that is resumed, so the result differs: {}", fmt::join(other, ", "));
  if (quantized(options_.quantize).gradients) {
    warn(
        "--quantize {}: what rounding had left of the gradients is in no checkpoint, so the result differs a "
        "little from that of a run that was not interrupted.",
        options_.quantize);
  }
  if (!options_.quiet) say("resumed {} at step {}\n", report->path.string(), engine_->step_count());
  return true;
}

void TrainRun::start_from_weights() {
  State state = engine_->state(), weights;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.path.starts_with(kParameters)) weights.tensors.push_back(tensor);
  }
  LoadOptions how{.allow_missing = options_.allow_missing,
                  .allow_extra = true,
                  .allow_rounding = true,
                  .state_is_fresh = true,
                  .ledger = &world_.device().ledger()};
  LoadReport report;
  if (is_weights(options_.init)) {
    report = load_weights(weights, world_.communicator(), options_.init, how);
  } else {
    const auto path = find_checkpoint_at(options_.init);
    if (!path)
      throw UsageError("--init " + options_.init + ": there are neither safetensors weights nor a checkpoint.");
    report = load(weights, world_.communicator(), *path, how);
    refuse_other_shape(weights, *path);
    for (const std::string& name : report.extra) {
      if (name.starts_with(kParameters)) throw UsageError("--init " + options_.init + ": " + name + " is only there.");
    }
  }
  engine_->adopt(state);  // with its own step and scalars: a new run begins
  if (!leads()) return;
  tell_changes(report);
  if (!options_.quiet) say("started from {}: {}\n", report.path.string(), numbers_text(model_shape(options_)));
}

}  // namespace aliquot
