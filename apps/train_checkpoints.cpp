// Where a run starts: from a checkpoint, from weights, or anew.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/checkpoints/commands.h"
#include "apps/train_run.h"
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
    throw UsageError(fmt::format("The checkpoint does not say its {}; it was not written by aliquot train.", name));
  return *value;
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

void TrainRun::resume() {
  bool resumed = false;
  if (options_.resume != "none") {
    State state = engine_->state();
    const LoadOptions how{.allow_missing = options_.allow_missing,
                          .allow_rounding = true,
                          .state_is_fresh = true,
                          .ledger = &world_.device().ledger()};
    std::optional<LoadReport> report;
    if (options_.resume == "auto") {
      report = load_newest(state, world_.communicator(), options_.checkpoint_dir, how);
    } else {
      report = load(state, world_.communicator(), options_.resume, how);
    }
    if (report) {
      engine_->adopt(state);
      consumed_ = whole(state, kSequencesConsumed);
      saved_step_ = engine_->step_count();
      resumed = true;
      if (leads()) {
        for (const std::string& refused : report->refused) fmt::print(stderr, "aliquot: {}\n", refused);
        tell_changes(*report);
        if (!options_.quiet) fmt::print("resumed {} at step {}\n", report->path.string(), engine_->step_count());
      }
    }
  }
  if (!resumed && !options_.init.empty()) start_from_weights();
  begin_metrics(resumed);
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
