// Saving a run: waiting for the disk, or while training goes on.
#include <algorithm>
#include <fmt/format.h>
#include <string>

#include "apps/checkpoints/saved_shape.h"
#include "apps/say.h"
#include "apps/train/resume_point.h"
#include "apps/train/train_run.h"
#include "checkpoint/save.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {
namespace {

// A copy of the shard may take this part of what the ranks of a node leave free.
constexpr int64_t kPartOfAvailable = 4;

std::string on_or_off(bool is_on) { return is_on ? "on" : "off"; }

std::map<std::string, Scalar> rate_scalars(const TrainOptions& o) {
  std::map<std::string, Scalar> scalars = {
      {"lr", o.lr},         {"schedule", o.schedule},         {"scale_lr", o.scale_lr},
      {"warmup", o.warmup}, {"warmup_shape", o.warmup_shape}, {"warmup_from", o.warmup_from}};
  if (o.base_batch) scalars["base_batch"] = *o.base_batch;
  if (o.schedule == "constant") return scalars;
  scalars["steps"] = o.steps;
  scalars["min_lr"] = o.min_lr;
  return scalars;
}

std::map<std::string, Scalar> optimizer_scalars(const TrainOptions& o) {
  std::map<std::string, Scalar> scalars = {{"optimizer", o.optimizer},
                                           {"betas", std::vector<double>{o.beta_1, o.beta_2}},
                                           {"eps", o.eps},
                                           {"weight_decay", o.weight_decay},
                                           {"decay_all", on_or_off(o.decay_all)},
                                           {"clip", o.clip},
                                           {"moments", o.state}};
  if (o.optimizer == "muon") scalars["muon_lr"] = o.muon_lr;
  if (o.momentum) scalars["momentum"] = *o.momentum;
  if (o.nesterov) scalars["nesterov"] = on_or_off(*o.nesterov);
  return scalars;
}

}  // namespace

/// Room for this rank's part of the fp32 master and of the optimizer's state, whatever the stage: from the plan alone, so
/// that a dry run knows it.
int64_t TrainRun::snapshot_capacity() {
  const Plan& plan = engine_->plan();
  int64_t bytes = 0;
  for (const FlatSpec& flat : plan.flats) bytes += flat.layout.shard_count() * element_bytes(DType::kFloat32);
  int64_t state_bytes = 0;  // in memory or not
  for (const PlannedBuffer& buffer : plan.schedule.buffers) {
    const bool is_state = buffer.role == Role::kOptimizer || buffer.role == Role::kOptimizerHome;
    state_bytes += is_state && buffer.always ? buffer.size_bytes : 0;
  }
  return bytes + (options_.stage() == 0 ? state_bytes / world_.rank_count() : state_bytes);
}

/// Whether a step beside a background save stays within --memory-budget.
bool TrainRun::budget_has_room() {
  if (!options_.memory_budget) return true;
  const int64_t step_bytes = account(engine_->plan().schedule).peak_bytes;
  return step_bytes + kStagingBytes + snapshot_capacity() <= *options_.memory_budget;
}

/// Collective. auto: where checkpoints are written on the way, and the budget, or else the machine, has room for a copy on
/// every rank.
bool TrainRun::saves_in_background() {
  if (options_.checkpoint_dir.empty() || options_.save == "blocking") return false;
  const bool room = budget_has_room();
  if (options_.save == "snapshot") {
    if (room) return true;
    throw UnavailableError(fmt::format(
        "--save snapshot: a copy of the shard ({} bytes) and {} bytes to write through do not fit beside a step in "
        "--memory-budget {}: give more, or --save blocking.",
        snapshot_capacity(), kStagingBytes, *options_.memory_budget));
  }
  if (options_.checkpoint_every == 0) return false;  // the only one comes when there is no training left to go on with
  const bool fits = room && snapshot_capacity() <= available_memory_bytes() / ranks_here() / kPartOfAvailable;
  const auto answers = world_.communicator().gather_objects(fits ? "yes" : "no");
  return std::all_of(answers.begin(), answers.end(), [](const std::string& answer) { return answer == "yes"; });
}

void TrainRun::prepare_saving() {
  if (!snapshots_) return;
  saver_ = std::make_unique<BackgroundSaver>(world_.communicator(), snapshot_capacity(), &world_.device().ledger());
}

/// What a run is made of besides its model and is compared on resume. The number of ranks is not among it, nor is anything
/// that changes no result: the same state gives the same file.
std::map<std::string, Scalar> TrainRun::run_scalars() const {
  std::map<std::string, Scalar> scalars = {{"seed", options_.seed},
                                           {"data_seed", options_.data_seed},
                                           {"data_tokens", data_.token_count()},
                                           {"shuffle", options_.shuffle},
                                           {"global_batch", *options_.global_batch},
                                           {"sequence", *options_.sequence},
                                           {"precision", options_.precision},
                                           {"gradients", options_.gradients},
                                           {"reduce_precision", options_.reduce_precision},
                                           {"quantize", options_.quantize}};
  scalars.merge(rate_scalars(options_));
  scalars.merge(optimizer_scalars(options_));
  return scalars;
}

/// What was updated in backward from gradients that are none is not to push out what a run can go on from.
bool TrainRun::is_spoiled() const { return options_.update_in_backward && not_finite_in_a_row_ > 0; }

void TrainRun::tell_spoiled() {
  if (!leads()) return;
  progress_->finish();
  warn(
      "step {} is not saved, the checkpoints before it stand: its weights were updated in backward from gradients "
      "that are not finite.",
      engine_->step_count());
}

void TrainRun::save_checkpoint() {
  if (options_.checkpoint_dir.empty() || saved_step_ == engine_->step_count()) return;
  if (is_spoiled()) return tell_spoiled();
  if (claim_) claim_->renew();
  const InPhase saving(*this, RunPhase::kSaving);
  if (options_.check_every > 0) check_copies();  // what is saved is not what one rank alone believes
  State state = engine_->state();
  state.scalars[kSequencesConsumed] = consumed_;
  const ModelShape shape = model_shape(options_);
  state.scalars["model"] = model_name(options_);
  state.scalars.merge(shape_scalars(shape));
  if (spikes_) {
    const SpikeGuard::Seen& seen = spikes_->seen();
    state.scalars[kLossesSeen] = std::vector<double>{seen.mean, seen.variance, static_cast<double>(seen.count)};
  }
  state.scalars.merge(run_scalars());
  const SaveOptions how{.keep_count = static_cast<int>(options_.keep),
                        .written_by = {{"zero_stage", static_cast<int64_t>(options_.stage())},
                                       {"world", world_.communicator().describe()},
                                       {"device", world_.device().describe()}},
                        .ledger = &world_.device().ledger()};
  if (saver_ != nullptr && saver_->in_flight()) collect_checkpoint();
  saved_step_ = engine_->step_count();
  if (saver_ != nullptr) {
    saver_->start(state, options_.checkpoint_dir, how);
  } else {
    tell_end([&] { return save(state, world_.communicator(), options_.checkpoint_dir, how); });
  }
}

void TrainRun::check_copies() {
  const InPhase comparing(*this, RunPhase::kComparing);
  engine_->check_copies();
}

void TrainRun::collect_checkpoint() {
  const InPhase saving(*this, RunPhase::kSaving);
  tell_end([&] { return saver_->collect(); });
}

/// A save that failed in mid-run is told, and the run goes on: the checkpoint before it stands, and the next may succeed.
void TrainRun::tell_end(const std::function<std::optional<SaveReport>()>& end) {
  const int64_t step = saved_step_;
  try {
    const std::optional<SaveReport> report = end();
    if (!report || !leads()) return;
    for (const std::string& warning : report->warnings) warn("{}", warning);
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& error) {
    saved_step_ = -1;
    if (last_save_) throw;
    if (!leads()) return;
    progress_->finish();
    warn("the checkpoint of step {} was not written, the ones before it stand: {}", step, error.what());
  }
}

/// The end of a run must be on disk before it is told.
void TrainRun::save_last_checkpoint() {
  if (saver_ != nullptr && saver_->in_flight()) collect_checkpoint();
  last_save_ = true;
  save_checkpoint();
  if (saver_ != nullptr && saver_->in_flight()) collect_checkpoint();
}

}  // namespace aliquot
