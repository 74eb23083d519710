// Saves a run, either blocking or in the background.
#include "apps/train/checkpoints/checkpoint_keeper.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <string>

#include "apps/checkpoints/saved_shape.h"
#include "apps/console.h"
#include "checkpoint/save.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {
namespace {

// With --save auto, snapshots may use at most 1/kMaxAvailableFraction of the node's available memory.
constexpr int64_t kMaxAvailableFraction = 4;

std::string on_or_off(bool is_on) { return is_on ? "on" : "off"; }

std::map<std::string, Scalar> rate_scalars(const TrainOptions& o) {
  std::map<std::string, Scalar> scalars = {{"lr", *o.optimizer.lr},
                                           {"schedule", option_text(o, "schedule")},
                                           {"scale_lr", option_text(o, "scale-lr")},
                                           {"warmup", o.warmup},
                                           {"warmup_shape", option_text(o, "warmup-shape")},
                                           {"warmup_from", o.warmup_from}};
  if (o.base_batch) scalars["base_batch"] = *o.base_batch;
  if (o.schedule == RateShape::kConstant) return scalars;
  scalars["steps"] = o.steps;
  scalars["min_lr"] = o.min_lr;
  return scalars;
}

std::map<std::string, Scalar> optimizer_scalars(const TrainOptions& o) {
  std::map<std::string, Scalar> scalars = {{"optimizer", option_text(o, "optimizer")},
                                           {"betas", std::vector<double>{*o.optimizer.beta1, *o.optimizer.beta2}},
                                           {"eps", *o.optimizer.eps},
                                           {"weight_decay", *o.optimizer.weight_decay},
                                           {"decay_all", on_or_off(o.decay_all)},
                                           {"clip", o.engine.clip},
                                           {"moments", option_text(o, "state")}};
  if (o.optimizer.kind == OptimizerKind::kMuon) scalars["muon_lr"] = *o.optimizer.muon_lr;
  if (o.optimizer.momentum) scalars["momentum"] = *o.optimizer.momentum;
  if (o.optimizer.nesterov) scalars["nesterov"] = on_or_off(*o.optimizer.nesterov);
  return scalars;
}

/// Returns the size in bytes of a snapshot: one shard of the fp32 masters and optimizer state of the plan's pipeline
/// stage. With `only_adapters`, without the base. Holds for any ZeRO stage. Uses only the plan, so that a dry run can
/// print the size.
int64_t snapshot_capacity(const Plan& plan, bool only_adapters) {
  int64_t bytes = 0;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    if (plan.is_here(f) && (plan.trains(f) || !only_adapters))
      bytes += plan.flats[f].layout.shard_count() * element_bytes(DType::kFloat32);
  }
  int64_t state_bytes = 0;  // including offloaded state
  for (const PlannedBuffer& buffer : plan.schedule.buffers) {
    const bool is_state = buffer.role == Role::kOptimizer || buffer.role == Role::kOffloadedOptimizer;
    state_bytes += is_state && buffer.always ? buffer.size_bytes : 0;
  }
  return bytes + (plan.policy.zero_stage == 0 ? state_bytes / plan.topology.rank_count() : state_bytes);
}

/// Whether a step during a background save stays within --memory-budget.
bool fits_budget(const TrainContext& context, int64_t capacity_bytes) {
  const auto& budget = context.options().memory_budget;
  if (!budget) return true;
  return account(context.engine().plan().schedule).peak_bytes + kStagingBytes + capacity_bytes <= *budget;
}

/// Decides between blocking and background saves. --save auto chooses background saves if checkpoints are written
/// during training, and the budget and the machine have memory for a snapshot on every rank. Collective.
bool saves_in_background(const TrainContext& context) {
  const TrainOptions& options = context.options();
  if (options.checkpoint_dir.empty() || options.save == "blocking") return false;
  const int64_t capacity_bytes = snapshot_capacity(context.engine().plan(), options.lora.rank > 0);
  bool fits = fits_budget(context, capacity_bytes);
  if (options.save == "snapshot") {
    if (fits) return true;
    throw UnavailableError(fmt::format(
        "--save snapshot: the memory of a step, a copy of the shard ({} bytes) and write buffers ({} bytes) exceed "
        "--memory-budget {}: give a larger budget, or use --save blocking.",
        capacity_bytes, kStagingBytes, *options.memory_budget));
  }
  if (options.checkpoint_every == 0) return false;  // the only save is after the last step
  fits = fits && capacity_bytes <= available_memory_bytes() / context.node_rank_count() / kMaxAvailableFraction;
  const auto answers = context.world().communicator().gather_objects(fits ? "yes" : "no");
  return std::ranges::all_of(answers, [](const std::string& answer) { return answer == "yes"; });
}

}  // namespace

std::map<std::string, Scalar> run_scalars(const TrainOptions& o, std::map<std::string, Scalar> data) {
  std::map<std::string, Scalar> scalars = {{"seed", static_cast<int64_t>(o.engine.seed)},
                                           {"data_seed", o.data_seed},
                                           {"shuffle", option_text(o, "shuffle")},
                                           {"global_batch", *o.global_batch},
                                           {"sequence", *o.sequence},
                                           {"precision", option_text(o, "precision")},
                                           {"gradients", option_text(o, "gradients")},
                                           {"reduce_precision", option_text(o, "reduce-precision")},
                                           {"quantize", option_text(o, "quantize")}};
  scalars.merge(data);
  scalars.merge(rate_scalars(o));
  scalars.merge(optimizer_scalars(o));
  return scalars;
}

namespace {

State state_to_save(const TrainContext& context, const RunState& run, const std::map<std::string, Scalar>& data,
                    const std::optional<SavedAdapters>& adapters) {
  const TrainOptions& options = context.options();
  State state = saved_part(context.engine().state(), options);
  if (adapters) state.scalars.merge(adapter_scalars(*adapters));
  state.scalars[kSequencesConsumed] = run.sequences_consumed;
  state.scalars["model"] = model_name(options);
  state.scalars.merge(shape_scalars(model_shape(options)));
  if (run.spikes) {
    const SpikeGuard::Statistics& losses = run.spikes->statistics();
    state.scalars[kLossStatisticsName] =
        std::vector<double>{losses.mean, losses.variance, static_cast<double>(losses.count)};
  }
  state.scalars.merge(run_scalars(options, data));
  return state;
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(const TrainContext& context, MemoryAudit& audit, TrainReporter& reporter,
                                   std::map<std::string, Scalar> data)
    : context_(context), audit_(audit), reporter_(reporter), data_(std::move(data)) {}

void CheckpointKeeper::plan_saving() {
  if (!saves_in_background(context_)) return;
  std::vector<int64_t> bytes_by_stage;
  for (const Plan& plan : context_.engine().pipeline_plans())
    bytes_by_stage.push_back(snapshot_capacity(plan, context_.options().lora.rank > 0));
  audit_.add_snapshots_to_plan(std::move(bytes_by_stage));
}

void CheckpointKeeper::prepare_saving() {
  const auto bytes = audit_.snapshot_bytes();
  if (!bytes) return;
  World& world = context_.world();
  saver_ = std::make_unique<BackgroundSaver>(world.communicator(), *bytes, &world.device().ledger());
}

bool CheckpointKeeper::has_nonfinite_update(const RunState& state) const {
  return context_.options().engine.update_in_backward && state.not_finite_in_a_row > 0;
}

void CheckpointKeeper::save(const RunState& run) {
  const TrainOptions& options = context_.options();
  Engine& engine = context_.engine();
  if (options.checkpoint_dir.empty() || saved_step_ == engine.step_count()) return;
  if (has_nonfinite_update(run)) {
    reporter_.warning(
        fmt::format("step {} was not saved, because --update-in-backward updated weights from gradients that are not "
                    "finite; earlier checkpoints are unchanged.",
                    engine.step_count()));
    return;
  }
  if (claim_) claim_->renew();
  const MemoryAudit::ScopedPhase saving(audit_, RunPhase::kSaving);
  if (options.check_every > 0) check_copies();  // never save state that differs between copies
  World& world = context_.world();
  const State state = state_to_save(context_, run, data_, adapters_);
  const SaveOptions how{.keep_count = static_cast<int>(options.keep),
                        .written_by = {{"zero_stage", static_cast<int64_t>(options.engine.zero_stage)},
                                       {"world", world.communicator().describe()},
                                       {"device", world.device().describe()}},
                        .ledger = &world.device().ledger()};
  if (saver_ != nullptr && saver_->in_flight()) collect();
  saved_step_ = engine.step_count();
  if (saver_ != nullptr) {
    saver_->start(state, options.checkpoint_dir, how);
  } else {
    report_save([&] { return aliquot::save(state, world.communicator(), options.checkpoint_dir, how); });
  }
}

void CheckpointKeeper::check_copies() {
  const MemoryAudit::ScopedPhase comparing(audit_, RunPhase::kComparingReplicas);
  context_.engine().check_copies();
}

void CheckpointKeeper::collect() {
  if (saver_ == nullptr) return;
  const MemoryAudit::ScopedPhase saving(audit_, RunPhase::kSaving);
  report_save([&] { return saver_->collect(); });
}

/// Reports the result of a save. A failure during training is only a warning: the previous checkpoint remains valid,
/// and the next save may succeed.
void CheckpointKeeper::report_save(const std::function<std::optional<SaveReport>()>& end) {
  const int64_t step = saved_step_;
  try {
    const std::optional<SaveReport> report = end();
    if (!report || !context_.is_rank_zero()) return;
    for (const std::string& warning : report->warnings) warn("{}", warning);
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& error) {
    saved_step_ = -1;
    if (is_last_) throw;
    reporter_.warning(fmt::format("the checkpoint of step {} was not written (earlier checkpoints are unchanged): {}",
                                  step, error.what()));
  }
}

void CheckpointKeeper::save_last(const RunState& state) {
  if (saver_ != nullptr && saver_->in_flight()) collect();
  is_last_ = true;
  save(state);
  if (saver_ != nullptr && saver_->in_flight()) collect();
}

}  // namespace aliquot
