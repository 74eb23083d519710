// Where a run starts: from a checkpoint, from weights, or anew.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/checkpoints/commands.h"
#include "apps/quantize_words.h"
#include "apps/train_run.h"
#include "checkpoint/difference.h"
#include "checkpoint/find.h"
#include "checkpoint/load.h"
#include "checkpoint/weights.h"

namespace aliquot {
namespace {

constexpr std::string_view kParameters = "parameters/";

int64_t whole(const State& state, const char* name) {
  const auto found = state.scalars.find(name);
  const auto* value = found == state.scalars.end() ? nullptr : std::get_if<int64_t>(&found->second);
  if (value == nullptr)
    throw UsageError(fmt::format(
        "The checkpoint does not say its {}; it was not written by aliquot train: start from its weights with --init.",
        name));
  return *value;
}

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

/// What is not as it was saved.
void tell_changes(const LoadReport& report) {
  if (!report.missing.empty()) {
    fmt::print(stderr, "aliquot: {} lacks {}; they start as zeros.\n", report.path.string(),
               fmt::join(report.missing, ", "));
  }
  if (!report.converted.empty())
    fmt::print(stderr, "aliquot: converted from {}: {}\n", report.path.string(), fmt::join(report.converted, ", "));
}

}  // namespace

// What others left is swept by one that knows that nobody is at work there.
void TrainRun::claim_directory() {
  std::string problem;
  if (!options_.checkpoint_dir.empty() && leads()) {
    try {
      claim_.emplace(options_.checkpoint_dir);
      for (const std::string& done : sweep_leftovers(options_.checkpoint_dir))
        fmt::print(stderr, "aliquot: {}\n", done);
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

bool TrainRun::resume() {
  State state = engine_->state();
  const LoadOptions how{.allow_missing = options_.allow_missing,
                        .allow_rounding = true,
                        .state_is_fresh = true,
                        .ledger = &world_.device().ledger()};
  const auto report = options_.resume == "auto"
                          ? load_newest(state, world_.communicator(), options_.checkpoint_dir, how)
                          : std::optional(load(state, world_.communicator(), checkpoint_at(options_.resume), how));
  if (!report) return false;
  const auto heads = state.scalars.find("heads");
  if (heads != state.scalars.end() && heads->second != Scalar(*options_.heads)) {
    throw UsageError(fmt::format("{} is of a model with {} heads and this one has {}: give --heads {}.",
                                 report->path.string(), describe(heads->second), *options_.heads,
                                 describe(heads->second)));
  }
  const auto other = other_options(state, run_scalars());
  engine_->adopt(state);
  consumed_ = whole(state, kSequencesConsumed);
  saved_step_ = engine_->step_count();
  const auto seen = state.scalars.find("losses_seen");
  const auto* numbers = seen == state.scalars.end() ? nullptr : std::get_if<std::vector<double>>(&seen->second);
  if (spikes_ && numbers != nullptr && numbers->size() == 3)
    spikes_->go_on_from({(*numbers)[0], (*numbers)[1], static_cast<int64_t>((*numbers)[2])});
  if (!leads()) return true;
  for (const std::string& refused : report->refused) fmt::print(stderr, "aliquot: {}\n", refused);
  tell_changes(*report);
  if (!other.empty())
    fmt::print(stderr, "aliquot: not as in the run that is resumed, so the result differs: {}\n",
               fmt::join(other, ", "));
  if (quantized(options_.quantize).gradients) {
    fmt::print(
        stderr,
        "aliquot: --quantize {}: what rounding had left of the gradients is in no checkpoint, so the result differs a "
        "little from that of a run that was not interrupted.\n",
        options_.quantize);
  }
  if (!options_.quiet) fmt::print("resumed {} at step {}\n", report->path.string(), engine_->step_count());
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
    const std::filesystem::path path = checkpoint_at(options_.init);
    report = load(weights, world_.communicator(), path, how);
    for (const std::string& name : report.extra) {
      if (name.starts_with(kParameters)) throw UsageError("--init " + options_.init + ": " + name + " is only there.");
    }
  }
  engine_->adopt(state);  // with its own step and scalars: a new run begins
  if (!leads()) return;
  tell_changes(report);
  if (!options_.quiet) fmt::print("started from {}\n", report.path.string());
}

}  // namespace aliquot
