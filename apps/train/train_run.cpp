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

/// Adds the losses of micro-batches, each already summed over ranks, in the tree order of --reproducible. The result
/// has the same bits for any division of the global batch into ranks and micro-batches, provided that both numbers are
/// powers of two and all micro-batches have the same size.
double sum_of_micro_batches(std::span<const double> by_micro_batch) {
  if (by_micro_batch.empty()) return 0;
  return combine_in_tree<double>(
      static_cast<int>(by_micro_batch.size()), [&](int i) { return by_micro_batch[static_cast<size_t>(i)]; },
      std::plus<double>());
}

/// The mean loss of a step or a validation. Without targets it is 0.
double mean_of_targets(double sum, int64_t target_count) {
  return target_count == 0 ? 0 : sum / static_cast<double>(target_count);
}

/// The number of sequences that all ranks read in a validation.
int64_t eval_sequence_count(const TrainContext& context) {
  const TrainOptions& options = context.options();
  const int data_ranks = data_rank_count(options.engine, context.world().rank_count());
  return options.eval_batches * options.micro_batch * data_ranks;
}

void check_has_eval_targets(const TrainContext& context, TrainData& data) {
  const int64_t sequences = eval_sequence_count(context);
  if (data.count_eval_targets(sequences) > 0) return;
  throw UsageError(fmt::format(
      "--eval-data {}: none of the tokens of the first {} sequences counts in the loss: use more --eval-batches.",
      context.options().eval_data, sequences));
}

void check_has_copies(const TrainOptions& options, int rank_count) {
  const bool one_rank = data_rank_count(options.engine, rank_count) == 1;
  const bool has_copies = options.engine.replicas > 1 || options.engine.tensor > 1;
  const bool compares = has_copies || options.engine.check_state;
  if (options.check_every == 0 || options.engine.zero_stage < 3 || compares || one_rank) return;
  throw UsageError(
      "--check-every compares copies of the same state, and --zero-stage 3 without --replicas or --tensor has no "
      "copies: use --zero-stage 2 or lower, --replicas 2, or --check-state.");
}

}  // namespace

TrainRun::TrainRun(World& world, const TrainOptions& options, const TrainInput& input)
    : system_peak_(launched_process_count() > 1),
      data_(world, options, input.data, input.evaluated),
      context_(world, options),
      audit_(context_, system_peak_),
      reporter_(context_, audit_),
      keeper_(context_, audit_, reporter_, data_.scalars()),
      rates_(rate_schedule(options)),
      text_(input.text) {
  if (options.decode_positions > 0) {
    audit_.add_cache_to_plan(KeyValueCache::size_bytes(model_shape(options), options.decode_positions,
                                                       *options.precision,
                                                       tensor_group(options, options.engine, world.rank())));
  }
  if (options.skip_spikes) state_.spikes.emplace(*options.skip_spikes);
}

void TrainRun::print_plan() {
  keeper_.plan_saving();
  reporter_.print_plan();
}

ExitCode TrainRun::run() {
  try {
    return run_steps();
  } catch (const FaultError& error) {
    reporter_.write_failure(error);
    throw;
  }
}

ExitCode TrainRun::run_steps() {
  prepare();
  const TrainOptions& options = context_.options();
  const Engine& engine = context_.engine();
  last_step_ = std::min(options.steps, options.stop_after.value_or(options.steps));
  reporter_.begin_progress(last_step_);
  while (engine.step_count() < last_step_) {
    step();
    if (is_due(options.sample_every)) sample();
    const int64_t limit = options.engine.max_skipped;  // 0: no limit
    if (limit > 0 && std::max(state_.not_finite_in_a_row, state_.spikes_in_a_row) >= limit)
      return finish(ExitCode::kNotFinite);
    if (is_due(options.check_every)) keeper_.check_copies();
    const bool saves = is_due(options.checkpoint_every);
    // Calls sum_and_agree() again after an evaluation, which may take long, and before a save. If a stop was requested
    // in the meantime, it takes effect now, and stop() makes the only save of this step.
    if (saves || is_due(options.eval_every) || is_due(options.sample_every)) sum_and_agree({}, engine.step_count());
    if (no_save_in_flight_) keeper_.collect();
    if (stop_signal_ != 0) return stop();
    if (saves && engine.step_count() < last_step_) keeper_.save(state_);
  }
  keeper_.save_last(state_);
  if (last_step_ < options.steps) reporter_.note(saved_sentence());
  return finish(keeper_.has_nonfinite_update(state_) ? ExitCode::kNotFinite : ExitCode::kDone);
}

ExitCode TrainRun::finish(ExitCode code) {
  reporter_.finish(code, state_);
  return code;
}

/// Returns kStopped if the run saved, so that it can be resumed. Without --checkpoint-dir, returns the exit code of a
/// process that the signal ended.
ExitCode TrainRun::stop() {
  keeper_.save_last(state_);
  finish(ExitCode::kStopped);
  if (const std::string saved = saved_sentence(); !saved.empty()) reporter_.warning(saved);
  if (!context_.options().checkpoint_dir.empty()) return ExitCode::kStopped;
  reporter_.warning(
      fmt::format("stopped on request after step {}; nothing was saved, because --checkpoint-dir is not set.",
                  context_.engine().step_count()));
  return static_cast<ExitCode>(exit_code_of_signal(stop_signal_));
}

/// Names the checkpoint of the last step, and how to continue. "" if that step is not saved.
std::string TrainRun::saved_sentence() const {
  const std::string& directory = context_.options().checkpoint_dir;
  const int64_t step = context_.engine().step_count();
  if (directory.empty() || keeper_.saved_step() != step) return "";
  return fmt::format("saved step {} in {}; continue with --resume auto", step, directory);
}

void TrainRun::prepare() {
  const TrainOptions& options = context_.options();
  Engine& engine = context_.engine();
  check_has_copies(options, context_.world().rank_count());
  data_.check(context_);
  if (!options.eval_data.empty()) check_has_eval_targets(context_, data_);
  keeper_.plan_saving();
  reporter_.print_banner(data_.token_count());
  if (tensor_groups_cross_nodes(context_.world().topology(), options.engine.tensor)) {
    reporter_.warning(
        "a tensor group spans several nodes, so each layer communicates between nodes: use a --tensor that divides the "
        "number of ranks per node.");
  }
  const bool resumes = options.resume != "none";
  if (!resumes)
    reporter_.begin_metrics(false);  // before memory is allocated, so that a plan that does not fit is recorded too
  audit_.require_fit();
  audit_.enter(RunPhase::kInitialValues);
  engine.materialize(initial_values(context_.model(), options.engine.seed));
  context_.backend().compute_on(engine.compute_stream());
  if (!options.trace.empty() || !options.metrics.empty()) engine.record_timelines();
  audit_.enter(RunPhase::kLoading);
  const bool resumed = keeper_.load_initial_state(state_);
  save_tokenizer_or_warn();
  if (text_.sample) {
    generator_.emplace(context_, options.decode_positions);
    decoder_.emplace(*text_.tokenizer);
  }
  if (resumes) reporter_.begin_metrics(resumed);
  keeper_.prepare_saving();
  audit_.enter(RunPhase::kTraining);
}

/// Returns, for each micro-batch, the sum of the loss over this rank's targets. The step has `target_count` targets
/// that count, on all ranks and in all micro-batches. The engine computes the mean of the gradients over ranks and
/// micro-batches. The loss factor makes it the gradient of the mean over the targets.
std::vector<double> TrainRun::run_micro_batches(int64_t target_count) {
  const TrainOptions& options = context_.options();
  Engine& engine = context_.engine();
  Model& model = context_.model();
  const auto terms = static_cast<double>(*options.global_batch / options.micro_batch);  // of the engine's mean
  // The fp16 loss scale varies by step. Without targets, all gradients are 0.
  const double factor = target_count == 0 ? 0 : engine.loss_scale() * terms / static_cast<double>(target_count);
  model.set_loss_factor(static_cast<float>(factor));
  return run_passes(engine, model, [&](int micro_batch, int data_coordinate) {
    return data_.batch(state_.sequences_consumed, micro_batch, data_coordinate);
  });
}

void TrainRun::step() {
  const double began = now_seconds();
  Engine& engine = context_.engine();
  drain_work_seconds();
  engine.set_learning_rate(rates_.rate(engine.step_count() + 1));
  const int64_t target_count = data_.count_targets(state_.sequences_consumed, *context_.options().global_batch);
  if (target_count == 0)
    reporter_.warning(fmt::format("step {} has no target whose loss counts.", engine.step_count() + 1));
  const auto mean_loss = [&](std::span<const double> own_losses, int64_t step) {
    return mean_of_targets(sum_and_agree(own_losses, step), target_count);
  };
  const std::vector<double> own_losses = run_micro_batches(target_count);
  std::optional<SpikeGuard>& spikes = state_.spikes;
  // --skip-spikes needs the loss before the update. Otherwise ranks sum it after engine.step().
  std::optional<double> early_loss;
  if (spikes) early_loss = mean_loss(own_losses, engine.step_count() + 1);
  if (spikes && skips_spike(*early_loss)) engine.abandon();
  StepOutcome outcome;
  outcome.report = engine.step();
  outcome.loss = early_loss ? *early_loss : mean_loss(own_losses, outcome.report.step);
  outcome.own_loss = std::reduce(own_losses.begin(), own_losses.end());
  if (spikes && !outcome.report.skipped && target_count > 0) spikes->add(outcome.loss);
  state_.sequences_consumed += *context_.options().global_batch;
  audit_.measure_outside_once();
  // Does not use report.skipped here: --update-in-backward does not skip a step whose gradients are not finite.
  const bool finite = outcome.report.first_not_finite.empty();
  state_.not_finite_in_a_row = finite ? 0 : state_.not_finite_in_a_row + 1;
  outcome.seconds = now_seconds() - began;
  outcome.parts = drain_work_seconds();
  if (is_validated(engine.step_count())) outcome.eval_loss = evaluate();
  reporter_.end_step(outcome);
}

/// Returns the sum of the loss over all targets of the step. Also makes all ranks agree on the stop signal and on
/// whether any rank is still saving: ranks observe both at different times and must act together. Without pipeline
/// stages and tensor groups, all three values share one all-reduce, because every all-reduce waits for the step's
/// traffic on the link.
double TrainRun::sum_and_agree(std::span<const double> own_losses, int64_t step) {
  std::array<double, 1 + kStopSignals.size()> flags{keeper_.is_saving() ? 1.0 : 0.0};
  const int signal = stop_signal();
  for (size_t i = 0; i < kStopSignals.size(); ++i) flags[1 + i] = signal == kStopSignals[i] ? 1 : 0;
  std::vector<double> sums(flags.begin(), flags.end());
  sums.insert(sums.end(), own_losses.begin(), own_losses.end());
  if (context_.options().engine.pipeline * context_.options().engine.tensor == 1) {
    context_.all_reduce(sums, Reduction::kSum, {"loss", step});
  } else {
    const std::span all(sums);
    context_.all_reduce(all.first(flags.size()), Reduction::kSum, {"flags", step});
    context_.sum_losses(all.subspan(flags.size()), {"loss", step});
  }
  no_save_in_flight_ = sums[0] == 0;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    if (sums[1 + i] > 0) stop_signal_ = kStopSignals[i];
  }
  return sum_of_micro_batches(std::span(sums).subspan(flags.size()));
}

/// Whether to skip this step. All ranks pass the same loss and get the same answer.
bool TrainRun::skips_spike(double loss) {
  const SpikeGuard& spikes = *state_.spikes;
  const bool spike = spikes.is_spike(loss);
  state_.spikes_in_a_row = spike ? state_.spikes_in_a_row + 1 : 0;
  if (spike) {
    reporter_.warning(fmt::format(
        "step {} was skipped: its loss {:.4f} is {:.1f} standard deviations above the mean {:.4f} (--skip-spikes).",
        context_.engine().step_count() + 1, loss, spikes.deviations_above_mean(loss), spikes.statistics().mean));
  }
  return spike;
}

/// Training can go on without the copy, because aliquot sample --tokenizer can name the file.
void TrainRun::save_tokenizer_or_warn() {
  if (!context_.is_rank_zero()) return;
  try {
    save_tokenizer(text_, context_.options().checkpoint_dir);
  } catch (const FaultError& error) {
    reporter_.warning(fmt::format("the tokenizer was not copied to --checkpoint-dir: {}.", error.what()));
  }
}

/// Whether a validation follows the step. One always follows the last step.
bool TrainRun::is_validated(int64_t step) const {
  const TrainOptions& options = context_.options();
  return !options.eval_data.empty() && (is_due(options.eval_every) || step == last_step_);
}

/// Prints a text that continues --sample-prompt. Collective.
void TrainRun::sample() {
  const MemoryAudit::ScopedPhase evaluating(audit_, RunPhase::kEvaluating);
  decoder_->restart();
  std::string text;
  for (const int32_t token : text_.sample->prompt) text += decoder_->append(token);
  generator_->generate(*text_.sample, [&](int32_t token) { text += decoder_->append(token); });
  reporter_.note(
      without_controls(fmt::format("step {} sample: {}", context_.engine().step_count(), text + decoder_->finish())));
}

/// Returns the mean validation loss over the targets of all ranks. Collective.
double TrainRun::evaluate() {
  const MemoryAudit::ScopedPhase evaluating(audit_, RunPhase::kEvaluating);
  const TrainOptions& options = context_.options();
  Model& model = context_.model();
  std::vector<double> losses;
  for (int64_t batch = 0; batch < options.eval_batches; ++batch) {
    model.set_batch(data_.eval_batch(batch));
    run_evaluation(context_.engine(), model);
    losses.push_back(context_.has_loss() ? model.loss_sum() : 0);
  }
  context_.sum_losses(losses, {"validation loss", context_.engine().step_count()});
  return mean_of_targets(sum_of_micro_batches(losses), data_.count_eval_targets(eval_sequence_count(context_)));
}

}  // namespace aliquot
