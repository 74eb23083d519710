#include "apps/train/reporting/train_reporter.h"

#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/console.h"
#include "apps/metrics/pipeline_step.h"
#include "apps/options/flag_names.h"
#include "apps/train/digest.h"
#include "apps/train/reporting/banner.h"
#include "apps/train/reporting/rank_timelines.h"
#include "kernels/system/format_bytes.h"
#include "kernels/system/seconds.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {
namespace {

std::string name_of(const StateTensor& tensor) { return tensor.path.substr(tensor.path.find('/') + 1); }

std::string unit_of_parameter(const Plan& plan, const std::string& name) {
  for (const UnitSpec& unit : plan.model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.tensor.name == name) return unit.name;
    }
  }
  return "unknown";
}

std::string ranks_or_all(const std::vector<int>& ranks, int rank_count) {
  return std::cmp_equal(ranks.size(), rank_count) ? "all ranks" : fmt::format("rank {}", fmt::join(ranks, ", "));
}

void report_give_up(const TrainOptions& options, const RunState& state) {
  const int64_t limit = options.engine.max_skipped;
  if (state.spikes_in_a_row > 0 && state.spikes_in_a_row >= limit) {
    warn("the last {} losses were spikes: try a lower --lr (--max-skipped is the limit).", state.spikes_in_a_row);
  } else if (limit > 0 && state.not_finite_in_a_row >= limit) {
    warn("the gradients of the last {} steps were not finite: try a lower --lr or --clip (--max-skipped is the limit).",
         state.not_finite_in_a_row);
  } else {
    warn("the gradients of the last {} steps were not finite, and --update-in-backward applied them: try a lower --lr.",
         state.not_finite_in_a_row);
  }
}

}  // namespace

TrainReporter::TrainReporter(const TrainContext& context, MemoryAudit& audit)
    : context_(context), audit_(audit), straggler_watch_(context.options().straggler_threshold) {}

/// The options, with "auto" replaced by the value that was chosen.
TrainOptions TrainReporter::resolved_options() const {
  TrainOptions o = context_.options();
  const Plan& plan = context_.engine().plan();
  const bool on_gpu = context_.on_gpu();
  if (o.world.device == DeviceChoice::kAuto) o.world.device = on_gpu ? DeviceChoice::kCuda : DeviceChoice::kHost;
  if (o.world.kind == WorldChoice::kAuto) {
    o.world.kind = launched_process_count() <= 1 ? WorldChoice::kThreads
                   : on_gpu                      ? WorldChoice::kNccl
                                                 : WorldChoice::kMpi;
  }
  if (o.engine.pipeline > 1) {
    o.engine.pipeline_cut = plan.policy.pipeline_cut;
    o.engine.virtual_stages = plan.policy.virtual_stages;
  }
  if (o.engine.gather == GatherMode::kAuto)
    o.engine.gather = plan.schedule.view ? GatherMode::kView : GatherMode::kCopy;
  if (o.save == "auto") o.save = audit_.snapshot_bytes() ? "snapshot" : "blocking";
  if (o.progress == "auto")
    o.progress = progress_style(o.progress, false, stdout) == ProgressStyle::kBar ? "bar" : "lines";
  if (o.engine.recompute != kRecomputeAsNeeded) return o;
  std::vector<Plan> stages = context_.engine().pipeline_plans();
  const auto uses_of = [](const std::vector<Plan>& plans) {
    std::vector<std::vector<bool>> uses;
    for (const Plan& stage : plans) uses.push_back(recomputed_uses(stage));
    return uses;
  };
  const auto chosen = uses_of(stages);
  for (const int count : {kRecomputeAll, 0}) {
    for (Plan& stage : stages) {
      stage.policy.recompute = count;
      stage.policy.recompute_by_stage.clear();
    }
    if (uses_of(stages) == chosen) o.engine.recompute = count;
  }
  return o;
}

void TrainReporter::print_plan() const {
  if (!context_.is_rank_zero()) return;
  const std::vector<Plan>& stages = context_.engine().pipeline_plans();
  const Plan& plan = stages.front();
  const TrainOptions& options = context_.options();
  TrainOptions shown = resolved_options();
  const Json values = option_values(train_option_table(shown));
  for (const auto& [name, value] : values.items()) {
    if (name != "config" && name != "dry-run") write_stdout("{} = {}\n", name, text_of(value));
  }
  write_stdout("\nmodel {}: {}\n", model_name(options), numbers_text(model_shape(options)));
  for (const Plan& stage : stages) {
    const RankMemory memory = audit_.planned(stage);
    write_stdout("\nplanned memory of each rank{}\n",
                 stages.size() == 1 ? "" : fmt::format(" of pipeline stage {}", stage.stage.index));
    for (int c = 0; c < kCategoryCount; ++c) {
      const int64_t bytes = memory.planned[static_cast<size_t>(c)];
      if (bytes > 0) write_stdout("  {:<14}{:>16}  {}\n", name(static_cast<Category>(c)), bytes, format_bytes(bytes));
    }
    write_stdout("  {:<14}{:>16}  {}\n", "peak", memory.planned_peak_bytes, format_bytes(memory.planned_peak_bytes));
  }
  write_stdout("\n");
  if (!options.mesh.reason.empty()) write_stdout("mesh: {}\n\n", options.mesh.reason);
  if (!plan.choice.empty()) {
    write_stdout("chosen: {}{}\n\n", with_flag_names(plan.choice),
                 context_.keeps_logits() ? "" : "; logits are computed twice, tile by tile");
  }
  if (plan.policy.replay_every != 0) write_stdout("replay: {}\n\n", replay_line(context_));
  for (const Plan& stage : stages) {
    if (stages.size() > 1) write_stdout("pipeline stage {}\n", stage.stage.index);
    write_stdout("{}", text(stage));
  }
}

void TrainReporter::print_banner(int64_t data_tokens) const {
  if (!context_.is_rank_zero() || context_.options().quiet) return;
  write_stdout("{}", start_banner(context_, audit_, data_tokens));
  std::fflush(stdout);
}

void TrainReporter::begin_progress(int64_t last_step) {
  const TrainOptions& options = context_.options();
  progress_.emplace(
      context_.is_rank_zero() ? progress_style(options.progress, options.quiet, stdout) : ProgressStyle::kNone,
      ProgressRange{context_.engine().step_count(), last_step, options.steps}, options.log_every, stdout);
}

void TrainReporter::note(const std::string& sentence) {
  if (!context_.is_rank_zero() || context_.options().quiet || sentence.empty()) return;
  if (progress_) progress_->finish();
  write_stdout("{}\n", sentence);
}

void TrainReporter::warning(const std::string& sentence) {
  if (!context_.is_rank_zero()) return;
  if (progress_) progress_->finish();
  warn("{}", sentence);
}

void TrainReporter::end_step(const StepOutcome& step) {
  const TrainOptions& options = context_.options();
  const StepReport& report = step.report;
  const int64_t tokens = *options.global_batch * *options.sequence;
  const StepRecord record = {.step = report.step,
                             .loss = step.loss,
                             .grad_norm = report.gradient_norm,
                             .lr = report.learning_rate,
                             .tokens = tokens,
                             .step_seconds = step.seconds,
                             .tokens_per_second = static_cast<double>(tokens) / step.seconds,
                             .skipped = report.skipped,
                             .memory = writes_metrics(step) ? audit_.most() : MemoryRecord{}};
  stepped_ = true;
  state_check_seconds_ += report.state_check_seconds;
  replay_seconds_ += report.replay_seconds;
  replay_count_ += report.replay_seconds > 0 ? 1 : 0;
  step_seconds_ += step.seconds;
  ++step_count_;
  work_seconds_ = {work_seconds_[1], step.parts};
  write_step(record, step);
  progress_->show({record.step, record.loss, record.tokens_per_second, record.grad_norm, record.lr, record.skipped},
                  now_seconds());
  if (step.eval_loss && context_.is_rank_zero() && !options.quiet) {
    progress_->finish();
    write_stdout("step {} validation loss {:.4f}\n", report.step, *step.eval_loss);
  }
  if (!report.first_not_finite.empty()) report_not_finite(report, step.own_loss);
}

/// Names the ranks whose local loss or gradients are not finite, since their data or their machine may be the cause.
/// Collective.
void TrainReporter::report_not_finite(const StepReport& report, double own_loss) {
  World& world = context_.world();
  std::vector<int> losses, gradients;
  const ScopedCollectivePurpose purpose("report", report.step);
  const auto all = world.communicator().gather_objects(
      fmt::format("{}{}", std::isfinite(own_loss) ? "" : "loss ", report.own_not_finite ? "gradients" : ""));
  for (int r = 0; r < world.rank_count(); ++r) {
    if (all[static_cast<size_t>(r)].starts_with("loss")) losses.push_back(r);
    if (all[static_cast<size_t>(r)].ends_with("gradients")) gradients.push_back(r);
  }
  const std::string by_rank =
      (losses.empty() ? "" : "; loss not finite on " + ranks_or_all(losses, world.rank_count())) +
      (gradients.empty() ? "" : "; local gradients not finite on " + ranks_or_all(gradients, world.rank_count()));
  warning(fmt::format("step {} was {}: the gradient of {} (unit {}) is not finite{}.", report.step,
                      report.skipped ? "skipped" : "applied in backward", report.first_not_finite,
                      unit_of_parameter(context_.engine().plan(), report.first_not_finite), by_rank));
}

/// Collective. Returns the digest of the parameters on rank 0. The value on other ranks has no meaning.
std::string TrainReporter::weight_digest() {
  const MemoryAudit::ScopedPhase digesting(audit_, RunPhase::kDigest);
  WeightDigest digest;
  Engine& engine = context_.engine();
  for (const StateTensor& tensor : engine.state().tensors) {
    if (!tensor.path.starts_with("parameters/")) continue;
    Sha256 sha;
    engine.read(name_of(tensor), [&](int64_t, std::span<const float> values) {
      if (context_.is_rank_zero()) sha.update(std::as_bytes(values));
    });
    if (context_.is_rank_zero()) digest.add(name_of(tensor), tensor.dtype, tensor.shape, sha.finish());
  }
  return digest.finish();
}

/// What --check-state costs on this rank: the time of digests, and the memory that the plan has for them.
std::string TrainReporter::state_check_sentence() const {
  const EngineOptions& options = context_.options().engine;
  if (!options.check_state || step_count_ == 0) return "";
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : context_.engine().plan().schedule.buffers)
    bytes += buffer.role == Role::kStateDigests ? buffer.size_bytes : 0;
  if (context_.engine().plan().topology.has_gpus())
    return fmt::format("--check-state: {} of digests\n", format_bytes(bytes));
  return fmt::format("--check-state: {:.3f} ms of thread time a step, {:.2f} % of the time of a step; {} of digests\n",
                     1e3 * state_check_seconds_ / static_cast<double>(step_count_),
                     100 * state_check_seconds_ / step_seconds_, format_bytes(bytes));
}

/// What --replay-every costs on this rank: the time of replays, and the memory that the plan has for digests.
std::string TrainReporter::replay_sentence() const {
  const Plan& plan = context_.engine().plan();
  if (plan.policy.replay_every == 0 || step_count_ == 0) return "";
  int64_t bytes = 0;
  for (const PlannedBuffer& buffer : plan.schedule.buffers) {
    const bool has_digests = buffer.role == Role::kGradientDigests || buffer.role == Role::kSumDigests ||
                             buffer.role == Role::kReplicaSumDigests;
    if (has_digests) bytes += buffer.size_bytes;
  }
  const double each = replay_count_ == 0 ? 0 : replay_seconds_ / static_cast<double>(replay_count_);
  return fmt::format(
      "--replay-every: {} replays in {} steps, one every {} steps, {:.3f} ms each, {:.2f} % of the time of a step; {} "
      "of "
      "digests\n",
      replay_count_, step_count_, plan.policy.replay_every, 1e3 * each, 100 * replay_seconds_ / step_seconds_,
      format_bytes(bytes));
}

void TrainReporter::finish(ExitCode code, const RunState& state) {
  progress_->finish();
  audit_.measure_outside();
  const std::string digest = weight_digest();
  const std::vector<RankMemory> memory = audit_.by_rank();
  Json pipeline;
  if (!context_.options().metrics.empty() && context_.options().engine.pipeline > 1)
    pipeline = pipeline_json(gather_timelines(context_, TimelinesOf::kFirstRankOfEachStage));
  if (context_.is_rank_zero()) {
    write_done(memory, digest, pipeline);
    if (!context_.options().quiet && stepped_)
      write_stdout("{}{}{}", memory_table(memory, context_.options().engine.tensor), state_check_sentence(),
                   replay_sentence());
    write_stdout("digest {}\n", digest);
    if (code == ExitCode::kNotFinite) report_give_up(context_.options(), state);
  }
  if (!context_.options().trace.empty()) write_trace_file();  // last, because it throws if the disk is full
}

}  // namespace aliquot
