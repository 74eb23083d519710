#include "apps/train/train_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <numeric>
#include <utility>

#include "apps/models/make_model.h"
#include "apps/models/model_loops_cuda.h"
#include "apps/say.h"
#include "apps/train/stop_request.h"
#include "apps/train/train_settings.h"
#include "apps/train/wrap.h"
#include "checkpoint/save.h"
#include "engine/choose/budget.h"
#include "kernels/device/host_stream.h"
#include "kernels/system/machine_memory.h"
#include "kernels/system/seconds.h"
#include "sharding/comm/exchange_purpose.h"
#include "sharding/comm/tree.h"

namespace aliquot {
namespace {

LoaderOptions loader_options(const World& world, const TrainOptions& o) {
  return {.sequence = *o.sequence,
          .micro_batch = o.micro_batch,
          .vocabulary = *o.vocabulary,
          .shuffle = o.shuffle == "on",
          .seed = static_cast<uint64_t>(o.data_seed),
          .rank = world.rank(),
          .rank_count = world.rank_count()};
}

constexpr auto kMostSummed = static_cast<size_t>(Communicator::kSmallCount);

}  // namespace

double sum_of_micro_batches(std::span<const double> by_micro_batch) {
  if (by_micro_batch.empty()) return 0;
  return combine_in_tree<double>(
      static_cast<int>(by_micro_batch.size()), [&](int i) { return by_micro_batch[static_cast<size_t>(i)]; },
      std::plus<double>());
}

TrainRun::TrainRun(World& world, const TrainOptions& options, const TokenSource& data, const TokenSource* evaluated)
    : world_(world),
      options_(options),
      stream_(world.device().make_stream(Lane::kCompute)),
      data_(data),
      evaluated_data_(evaluated),
      loader_(data, loader_options(world, options)),
      rates_(rate_schedule(options)),
      straggler_watch_(options.straggler_threshold),
      system_peak_(launched_process_count() > 1) {
  if (on_gpu()) {
    loops_ = make_cuda_model_loops(world.device());
  } else {
    options_.threads = host(*stream_).pool().thread_count();
    loops_ = make_host_model_loops(host(*stream_).pool());
  }
  if (evaluated != nullptr) {
    LoaderOptions in_order = loader_options(world, options);
    in_order.shuffle = false;
    evaluated_.emplace(*evaluated, in_order);
  }
  make_engine(true);
  try {
    if (options_.memory_budget) engine_->plan();
  } catch (const UnavailableError&) {  // on all ranks
    make_engine(false);
  }
}

/// Logits of the whole vocabulary are kept where the budget can be met with them, blocks recomputed if need be: made again
/// tile by tile they cost a product more.
void TrainRun::make_engine(bool keeps_logits) {
  keeps_logits_ = keeps_logits;
  ModelOptions model = model_options(options_);
  model.keep_logits = keeps_logits;
  engine_.reset();
  model_ = make_model(model_shape(options_), model, *loops_);
  engine_ = std::make_unique<Engine>(world_, engine_options(options_));
  wrap(*engine_, *model_, options_.decay_all);
}

ExitCode TrainRun::run() {
  prepare();
  last_step_ = std::min(options_.steps, options_.stop_after.value_or(options_.steps));
  progress_.emplace(leads() ? progress_style(options_.progress, options_.quiet, stdout) : ProgressStyle::kNone,
                    engine_->step_count(), options_.steps, stdout);
  while (engine_->step_count() < last_step_) {
    step();
    if (should_give_up()) return finish(ExitCode::kNotFinite);
    if (options_.check_every > 0 && engine_->step_count() % options_.check_every == 0) check_copies();
    const bool due = options_.checkpoint_every > 0 && engine_->step_count() % options_.checkpoint_every == 0;
    // Who was asked meanwhile need not wait for another step, nor save twice.
    if (due || evaluates()) agree({}, engine_->step_count());
    if (nobody_saves_ && saver_ != nullptr) collect_checkpoint();
    if (asked_by_ != 0) return stop(asked_by_);
    if (due && engine_->step_count() < last_step_) save_checkpoint();
  }
  save_last_checkpoint();
  return finish(is_spoiled() ? ExitCode::kNotFinite : ExitCode::kDone);
}

/// A run that saved says that it can be started again; one that has nowhere to save ends as the signal would have ended it.
ExitCode TrainRun::stop(int signal) {
  save_last_checkpoint();
  finish(ExitCode::kStopped);
  if (!options_.checkpoint_dir.empty()) return ExitCode::kStopped;
  if (leads())
    warn("asked to stop after step {}; nothing is saved, since there is no --checkpoint-dir.", engine_->step_count());
  return static_cast<ExitCode>(exit_code_of_signal(signal));
}

void TrainRun::prepare() {
  refuse_nothing_to_check();
  check_data();
  if (options_.skip_spikes) spikes_.emplace(*options_.skip_spikes);
  snapshots_ = saves_in_background();
  if (options_.resume == "none") begin_metrics(false);  // before memory is asked for: what was planned is told even so
  refuse_what_does_not_fit();
  system_peak_.enter(RunPhase::kInitialValues);
  engine_->materialize(initial_values(*model_, static_cast<uint64_t>(options_.seed)));
  loops_->compute_on(engine_->compute_stream());
  if (!options_.trace.empty() || !options_.metrics.empty()) engine_->record_timelines();
  system_peak_.enter(RunPhase::kLoading);
  find_start();
  prepare_saving();
  system_peak_.enter(RunPhase::kTraining);
}

int64_t TrainRun::ranks_here() const {
  const Topology& topology = world_.topology();
  return static_cast<int64_t>(topology.ranks_of_node(topology.node_of_rank[world_.rank()]).size());
}

std::string TrainRun::unit_of_parameter(const std::string& name) const {
  for (const UnitSpec& unit : engine_->plan().model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.tensor.name == name) return unit.name;
    }
  }
  return "unknown";
}

void TrainRun::refuse_nothing_to_check() const {
  if (options_.check_every == 0 || options_.stage() < 3 || options_.replicas > 1 || world_.rank_count() == 1) return;
  throw UsageError(
      "--check-every compares copies, and at --zero-stage 3 without --replicas no rank holds what another does: take a "
      "stage below 3, or --replicas 2.");
}

/// Collective. The system would hand out memory that it does not have, and kill somebody later.
void TrainRun::refuse_what_does_not_fit() {
  const int64_t planned_bytes = planned_memory().planned_peak_bytes;
  const int64_t rank_bytes = std::max(planned_bytes, aliquot::rank_bytes(engine_->plan()));
  const int64_t left = available_memory_bytes();
  std::string complaint;
  if (options_.memory_budget && planned_bytes > *options_.memory_budget) {
    complaint = fmt::format(
        "--memory-budget {}: a step fits, but saving and loading checkpoints takes {} bytes between steps, and then a "
        "rank "
        "holds {}: give at least that, or leave out --checkpoint-dir, --resume and --init.",
        *options_.memory_budget, kStagingBytes, planned_bytes);
  } else if (!on_gpu() && rank_bytes > left / ranks_here()) {
    complaint = fmt::format(
        "A rank would take {}, the {} of this machine {}, and it has {} left: a higher --zero-stage, a smaller "
        "--micro-batch or --sequence, or --recompute block needs less; aliquot plan says how much.",
        bytes_text(rank_bytes), ranks_here() == 1 ? "one rank" : fmt::format("{} ranks", ranks_here()),
        bytes_text(rank_bytes * ranks_here()), bytes_text(left));
  }
  for (const std::string& any : world_.communicator().gather_objects(complaint)) {
    if (!any.empty()) throw UnavailableError(any);
  }
}

/// This rank's sum of the loss over the tokens of each micro-batch.
std::vector<double> TrainRun::run_micro_batches() {
  std::vector<double> losses;
  const auto tokens = static_cast<double>(options_.micro_batch * *options_.sequence);
  model_->set_loss_factor(static_cast<float>(engine_->loss_scale() / tokens));  // fp16's scale moves from step to step
  for (int64_t micro = 0; micro < options_.accumulate; ++micro) {
    loader_.load(consumed_, micro);
    model_->set_batch({loader_.tokens(), loader_.targets()});
    run_micro_batch(*engine_, *model_);
    losses.push_back(model_->loss_sum());
  }
  return losses;
}

void TrainRun::step() {
  const double began = now_seconds();
  stepped_ = true;
  take_part_seconds();
  engine_->set_learning_rate(rates_.rate(engine_->step_count() + 1));
  const std::vector<double> own_losses = run_micro_batches();
  std::optional<double> known;  // before the update where a spike is to be skipped, else beside it
  if (spikes_) known = agree(own_losses, engine_->step_count() + 1);
  if (spikes_ && skips_spike(*known)) engine_->abandon();
  const StepReport report = engine_->step();
  const double loss = known ? *known : agree(own_losses, report.step);
  if (spikes_ && !report.skipped) spikes_->take(loss);
  consumed_ += *options_.global_batch;
  if (outside_bytes_ == 0) measure_outside();           // once: everything has been touched now
  const bool finite = report.first_not_finite.empty();  // an update in backward is taken all the same
  not_finite_in_a_row_ = finite ? 0 : not_finite_in_a_row_ + 1;
  const double seconds = now_seconds() - began;
  part_seconds_ = {part_seconds_[1], take_part_seconds()};
  std::optional<double> eval_loss;
  if (evaluates()) eval_loss = evaluate();
  const StepRecord record = record_of(report, loss, seconds);
  std::string digest;
  if (digest_due(report.step)) digest = weight_digest();  // all ranks have a part in it, though one writes it down
  if (metrics_) {
    Json extra;
    if (!digest.empty()) extra["digest"] = digest;
    if (eval_loss) extra["eval_loss"] = *eval_loss;
    if (options_.precision == "fp16") extra["loss_scale"] = report.loss_scale;
    write_metrics(json(record, extra));
  }
  if (!options_.metrics.empty() && options_.stragglers_every > 0 && report.step % options_.stragglers_every == 0)
    report_stragglers();
  progress_->show({record.step, record.loss, record.tokens_per_second, record.grad_norm, record.lr, record.skipped},
                  now_seconds());
  if (eval_loss && leads() && !options_.quiet) {
    progress_->finish();
    say("step {} validation loss {:.4f}\n", report.step, *eval_loss);
  }
  if (!finite) tell_not_finite(report, std::reduce(own_losses.begin(), own_losses.end()));
}

bool TrainRun::digest_due(int64_t step) const {
  return !options_.metrics.empty() && options_.digest_every > 0 && step % options_.digest_every == 0;
}

/// The mean loss over all tokens of the step; and by which signal anyone was asked to stop, and whether anyone still saves.
/// Signals and the ends of saves come to ranks at different times, and must be acted on together. One exchange for all of
/// it: each waits behind what the step has on the link.
double TrainRun::agree(std::span<const double> own_losses, int64_t step) {
  std::array<double, 1 + kStopSignals.size()> flags{saver_ != nullptr && !saver_->finished() ? 1.0 : 0.0};
  const int signal = stop_signal();
  for (size_t i = 0; i < kStopSignals.size(); ++i) flags[1 + i] = signal == kStopSignals[i] ? 1 : 0;
  std::vector<double> said(flags.begin(), flags.end());
  said.insert(said.end(), own_losses.begin(), own_losses.end());
  sum_over_ranks(said, {"loss", step});
  nobody_saves_ = said[0] == 0;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    if (said[1 + i] > 0) asked_by_ = kStopSignals[i];
  }
  const std::span losses = std::span(said).subspan(flags.size());
  return sum_of_micro_batches(losses) / static_cast<double>(*options_.global_batch * *options_.sequence);
}

/// Collective. In as few exchanges as the communicator allows.
void TrainRun::sum_over_ranks(std::span<double> values, Label label) {
  while (!values.empty()) {
    const size_t count = std::min(values.size(), kMostSummed);
    world_.communicator().all_reduce(*stream_, values.first(count), Reduction::kSum, label);
    stream_->synchronize();
    values = values.subspan(count);
  }
}

/// The same on all ranks, since the loss is.
bool TrainRun::skips_spike(double loss) {
  const bool spike = spikes_->is_spike(loss);
  spikes_in_a_row_ = spike ? spikes_in_a_row_ + 1 : 0;
  if (!spike || !leads()) return spike;
  progress_->finish();
  warn("step {} was skipped: its loss of {:.4f} is {:.1f} deviations above the mean, {:.4f}.",
       engine_->step_count() + 1, loss, spikes_->height(loss), spikes_->seen().mean);
  return spike;
}

/// Collective. Where a rank's own loss is not finite either, or its own gradients are not, the trouble began there: its data,
/// or its machine.
void TrainRun::tell_not_finite(const StepReport& report, double own_loss) {
  const bool loss_is_not = !std::isfinite(own_loss);
  std::vector<int> losses, gradients;
  const ExchangePurpose purpose("report", report.step);
  const auto all = world_.communicator().gather_objects(
      fmt::format("{}{}", loss_is_not ? "loss " : "", report.own_not_finite ? "gradients" : ""));
  for (int r = 0; r < world_.rank_count(); ++r) {
    if (all[static_cast<size_t>(r)].starts_with("loss")) losses.push_back(r);
    if (all[static_cast<size_t>(r)].ends_with("gradients")) gradients.push_back(r);
  }
  if (!leads()) return;
  progress_->finish();
  const auto ranks = [this](const std::vector<int>& some) {
    return std::cmp_equal(some.size(), world_.rank_count()) ? "any rank"
                                                            : fmt::format("rank {}", fmt::join(some, ", "));
  };
  const std::string also = (losses.empty() ? "" : "; nor is the loss of " + ranks(losses)) +
                           (gradients.empty() ? "" : "; nor are the own gradients of " + ranks(gradients));
  warn("step {} was {}: the gradient of {} (unit {}) is not finite{}.", report.step,
       report.skipped ? "skipped" : "taken, in backward", report.first_not_finite,
       unit_of_parameter(report.first_not_finite), also);
}

StepRecord TrainRun::record_of(const StepReport& report, double loss, double seconds) {
  const int64_t tokens = *options_.global_batch * *options_.sequence;
  return {.step = report.step,
          .loss = loss,
          .grad_norm = report.gradient_norm,
          .lr = report.learning_rate,
          .tokens = tokens,
          .step_seconds = seconds,
          .tokens_per_second = static_cast<double>(tokens) / seconds,
          .skipped = report.skipped,
          .memory = options_.metrics.empty() ? MemoryRecord{} : most_memory()};
}

}  // namespace aliquot
