#include "apps/train/train_run.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <functional>
#include <numeric>

#include "apps/console.h"
#include "apps/train/stop_request.h"
#include "apps/train/train_settings.h"
#include "apps/train/wrap.h"
#include "kernels/system/seconds.h"
#include "sharding/comm/combine_in_tree.h"

namespace aliquot {
namespace {

/// Adds the losses of micro-batches, each already summed over ranks, in the tree order of --reproducible. The result then has
/// the same bits however a global batch is divided into ranks and micro-batches, if both counts are powers of two and all
/// micro-batches have one size.
double sum_of_micro_batches(std::span<const double> by_micro_batch) {
  if (by_micro_batch.empty()) return 0;
  return combine_in_tree<double>(
      static_cast<int>(by_micro_batch.size()), [&](int i) { return by_micro_batch[static_cast<size_t>(i)]; },
      std::plus<double>());
}

void refuse_nothing_to_check(const TrainOptions& options, int rank_count) {
  if (options.check_every == 0 || options.engine.zero_stage < 3 || options.engine.replicas > 1 || rank_count == 1)
    return;
  throw UsageError(
      "--check-every compares copies, and at --zero-stage 3 without --replicas no rank holds what another does: take a "
      "stage below 3, or --replicas 2.");
}

}  // namespace

TrainRun::TrainRun(World& world, const TrainOptions& options, const TokenSource& data, const TokenSource* evaluated)
    : system_peak_(launched_process_count() > 1),
      data_(world, options, data, evaluated),
      context_(world, options),
      audit_(context_, system_peak_),
      reporter_(context_, audit_),
      keeper_(context_, audit_, reporter_, data_.token_count()),
      rates_(rate_schedule(options)) {
  if (options.skip_spikes) state_.spikes.emplace(*options.skip_spikes);
}

void TrainRun::print_plan() {
  keeper_.plan_saving();
  reporter_.print_plan();
}

ExitCode TrainRun::run() {
  prepare();
  const TrainOptions& options = context_.options();
  const Engine& engine = context_.engine();
  const int64_t last_step = std::min(options.steps, options.stop_after.value_or(options.steps));
  reporter_.begin_progress();
  while (engine.step_count() < last_step) {
    step();
    const int64_t most = options.engine.max_skipped;  // 0: any number
    if (most > 0 && std::max(state_.not_finite_in_a_row, state_.spikes_in_a_row) >= most)
      return finish(ExitCode::kNotFinite);
    if (is_due(options.check_every)) keeper_.check_copies();
    const bool saves = is_due(options.checkpoint_every);
    // A rank that was asked to stop meanwhile need not wait for another step, nor save twice.
    if (saves || is_due(options.eval_every)) agree({}, engine.step_count());
    if (saving_disabled_) keeper_.collect();
    if (stop_signal_ != 0) return stop();
    if (saves && engine.step_count() < last_step) keeper_.save(state_);
  }
  keeper_.save_last(state_);
  return finish(keeper_.has_nonfinite_update(state_) ? ExitCode::kNotFinite : ExitCode::kDone);
}

ExitCode TrainRun::finish(ExitCode code) {
  reporter_.finish(code, state_);
  return code;
}

/// A run that saved returns kStopped: it can be started again. One without a directory ends as the signal would have ended it.
ExitCode TrainRun::stop() {
  keeper_.save_last(state_);
  finish(ExitCode::kStopped);
  if (!context_.options().checkpoint_dir.empty()) return ExitCode::kStopped;
  reporter_.warning(fmt::format("asked to stop after step {}; nothing is saved, since there is no --checkpoint-dir.",
                                context_.engine().step_count()));
  return static_cast<ExitCode>(exit_code_of_signal(stop_signal_));
}

void TrainRun::prepare() {
  const TrainOptions& options = context_.options();
  Engine& engine = context_.engine();
  refuse_nothing_to_check(options, context_.world().rank_count());
  data_.check(context_);
  keeper_.plan_saving();
  const bool resumes = options.resume != "none";
  if (!resumes)
    reporter_.begin_metrics(false);  // before memory is allocated: the plan is recorded even if it does not fit
  audit_.require_fit();
  audit_.enter(RunPhase::kInitialValues);
  engine.materialize(initial_values(context_.model(), options.engine.seed));
  context_.backend().compute_on(engine.compute_stream());
  if (!options.trace.empty() || !options.metrics.empty()) engine.record_timelines();
  audit_.enter(RunPhase::kLoading);
  const bool resumed = keeper_.load_initial_state(state_);
  if (resumes) reporter_.begin_metrics(resumed);
  keeper_.prepare_saving();
  audit_.enter(RunPhase::kTraining);
}

/// This rank's sum of the loss over the tokens of each micro-batch.
std::vector<double> TrainRun::run_micro_batches() {
  const TrainOptions& options = context_.options();
  Engine& engine = context_.engine();
  Model& model = context_.model();
  std::vector<double> losses;
  const auto tokens = static_cast<double>(options.micro_batch * *options.sequence);
  model.set_loss_factor(static_cast<float>(engine.loss_scale() / tokens));  // fp16's scale moves from step to step
  for (int64_t micro = 0; micro < options.engine.accumulate; ++micro) {
    model.set_batch(data_.batch(state_.sequences_consumed, micro));
    run_micro_batch(engine, model);
    losses.push_back(model.loss_sum());
  }
  return losses;
}

void TrainRun::step() {
  const double began = now_seconds();
  Engine& engine = context_.engine();
  drain_work_seconds();
  engine.set_learning_rate(rates_.rate(engine.step_count() + 1));
  const std::vector<double> own_losses = run_micro_batches();
  std::optional<SpikeGuard>& spikes = state_.spikes;
  std::optional<double> known;  // before the update where a spike is to be skipped, else beside it
  if (spikes) known = agree(own_losses, engine.step_count() + 1);
  if (spikes && skips_spike(*known)) engine.abandon();
  StepOutcome outcome;
  outcome.report = engine.step();
  outcome.loss = known ? *known : agree(own_losses, outcome.report.step);
  outcome.own_loss = std::reduce(own_losses.begin(), own_losses.end());
  if (spikes && !outcome.report.skipped) spikes->take(outcome.loss);
  state_.sequences_consumed += *context_.options().global_batch;
  audit_.measure_outside_once();
  const bool finite = outcome.report.first_not_finite.empty();  // an update in backward is taken all the same
  state_.not_finite_in_a_row = finite ? 0 : state_.not_finite_in_a_row + 1;
  outcome.seconds = now_seconds() - began;
  outcome.parts = drain_work_seconds();
  if (is_due(context_.options().eval_every)) outcome.eval_loss = evaluate();
  reporter_.end_step(outcome);
}

/// Returns the mean loss over all tokens of the step. Also agrees on the signal by which any rank was asked to stop and on
/// whether any rank still saves: ranks see both at different times and must act on them together. One exchange serves all
/// three, because each exchange waits behind the step's traffic on the link.
double TrainRun::agree(std::span<const double> own_losses, int64_t step) {
  std::array<double, 1 + kStopSignals.size()> flags{keeper_.is_saving() ? 1.0 : 0.0};
  const int signal = stop_signal();
  for (size_t i = 0; i < kStopSignals.size(); ++i) flags[1 + i] = signal == kStopSignals[i] ? 1 : 0;
  std::vector<double> sums(flags.begin(), flags.end());
  sums.insert(sums.end(), own_losses.begin(), own_losses.end());
  context_.all_reduce(sums, Reduction::kSum, {"loss", step});
  saving_disabled_ = sums[0] == 0;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    if (sums[1 + i] > 0) stop_signal_ = kStopSignals[i];
  }
  const TrainOptions& options = context_.options();
  return sum_of_micro_batches(std::span(sums).subspan(flags.size())) /
         static_cast<double>(*options.global_batch * *options.sequence);
}

/// The same on all ranks, since the loss is.
bool TrainRun::skips_spike(double loss) {
  const SpikeGuard& spikes = *state_.spikes;
  const bool spike = spikes.is_spike(loss);
  state_.spikes_in_a_row = spike ? state_.spikes_in_a_row + 1 : 0;
  if (spike) {
    reporter_.warning(fmt::format(
        "step {} was skipped: its loss of {:.4f} is {:.1f} deviations above the mean, {:.4f}.",
        context_.engine().step_count() + 1, loss, spikes.deviations_above_mean(loss), spikes.statistics().mean));
  }
  return spike;
}

/// The mean validation loss over all ranks' tokens. Collective.
double TrainRun::evaluate() {
  const MemoryAudit::ScopedPhase evaluating(audit_, RunPhase::kEvaluating);
  const TrainOptions& options = context_.options();
  Model& model = context_.model();
  std::vector<double> losses;
  for (int64_t batch = 0; batch < options.eval_batches; ++batch) {
    model.set_batch(data_.eval_batch(batch));
    run_evaluation(context_.engine(), model);
    losses.push_back(model.loss_sum());
  }
  context_.all_reduce(losses, Reduction::kSum, {"validation loss", context_.engine().step_count()});
  const int64_t rank_tokens = options.eval_batches * options.micro_batch * *options.sequence;
  return sum_of_micro_batches(losses) / static_cast<double>(rank_tokens * context_.world().rank_count());
}

}  // namespace aliquot
