// Writes the lines of the --metrics file.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <ranges>

#include "apps/models/hugging_face/weights.h"
#include "apps/train/reporting/train_reporter.h"
#include "apps/version.h"
#include "engine/cost/simulate.h"
#include "kernels/system/machine_memory.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {
namespace {

// A step with more operations is not recorded, because its chart would be unreadable.
constexpr std::size_t kMaxOperations = 5000;

/// Rounds to nanoseconds, to keep the file small.
double rounded(double seconds) { return std::round(seconds * 1e9) / 1e9; }

/// {"titles": [..], "lanes": [..], "bytes": {"parameters": [..], ..}}, with one element for each operation, in issue
/// order. Categories that are always 0 are left out.
Json step_plan_json(const Plan& plan) {
  const Schedule& schedule = plan.schedule;
  if (schedule.operations.size() > kMaxOperations) return nullptr;
  const Account bytes = account(schedule);
  Json titles = Json::array(), lanes = Json::array(), by_category = Json::object();
  for (std::size_t id = 0; id < schedule.operations.size(); ++id) {
    const Operation& operation = schedule.operations[id];
    const std::string suffix = schedule.micro_batch_count > 1 ? fmt::format(" m{}", operation.micro_batch) : "";
    titles.push_back(title(plan, static_cast<OperationId>(id)) + suffix);
    lanes.push_back(name(operation.lane));
  }
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    if (bytes.peak[c] == 0) continue;
    Json& series = by_category[std::string(name(static_cast<Category>(c)))] = Json::array();
    for (const BytesByCategory& at : bytes.at) series.push_back(at[c]);
  }
  return {{"titles", titles}, {"lanes", lanes}, {"bytes", by_category}};
}

/// {"start_seconds": [..], "end_seconds": [..], "step_seconds": .., "hidden_share": .., "part_seconds": {"products":
/// .., ..}}; null if no step was recorded or it has too many operations. `parts` must belong to the same step.
Json step_times_json(const Timeline& timeline, const WorkSeconds& parts) {
  if (timeline.operations.empty() || timeline.operations.size() > kMaxOperations) return nullptr;
  Json starts = Json::array(), ends = Json::array();
  for (const TimeSpan& span : timeline.operations) {
    starts.push_back(rounded(span.start_seconds));
    ends.push_back(rounded(span.end_seconds));
  }
  Json by_part = Json::object();
  for (std::size_t p = 0; p < parts.size(); ++p)
    by_part[std::string(name(static_cast<WorkKind>(p)))] = rounded(parts[p]);
  return {{"start_seconds", starts},
          {"end_seconds", ends},
          {"step_seconds", timeline.step_seconds},
          {"hidden_share", timeline.hidden_share()},
          {"part_seconds", by_part}};
}

/// Replaces each planned and measured value of the record by the rank's value if that is larger.
void include(auto& record, const RankMemory& rank) {
  for (size_t i = 0; i < record.planned.size(); ++i) {
    record.planned[i] = std::max(record.planned[i], rank.planned[i]);
    record.measured[i] = std::max(record.measured[i], rank.measured[i]);
  }
  record.planned_peak_bytes = std::max(record.planned_peak_bytes, rank.planned_peak_bytes);
  record.measured_peak_bytes = std::max(record.measured_peak_bytes, rank.measured_peak_bytes);
}

/// The record at the end of a run, with the maximum of each value over all ranks, and over those of each pipeline
/// stage.
DoneRecord done_record(const std::vector<RankMemory>& memory, int stages, const std::string& digest, int64_t steps) {
  DoneRecord done{.digest = digest, .steps = steps};
  if (stages > 1) done.stages.resize(static_cast<size_t>(stages));
  for (size_t i = 0; i < memory.size(); ++i) {
    const RankMemory& rank = memory[i];
    include(done, rank);
    if (stages > 1) include(done.stages[i / (memory.size() / static_cast<size_t>(stages))], rank);
    done.system_bytes = std::max(done.system_bytes, rank.system_bytes);
    done.system_start_bytes = std::max(done.system_start_bytes, rank.system_start_bytes);
    if (rank.system_peak_bytes <= done.system_peak_bytes) continue;
    done.system_peak_bytes = rank.system_peak_bytes;
    done.system_peak_phase = name(rank.system_peak_phase);
  }
  for (std::size_t phase = 0; phase < kRunPhaseCount; ++phase) {
    const auto bytes_of = [phase](const RankMemory& rank) { return rank.system_bytes_by_phase[phase]; };
    const int64_t most = std::ranges::max(memory | std::views::transform(bytes_of));
    if (most > 0) done.system_bytes_by_phase.emplace_back(name(static_cast<RunPhase>(phase)), most);
  }
  return done;
}

bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

}  // namespace

void TrainReporter::begin_metrics(bool append) {
  const std::string& path = context_.options().metrics;
  if (path.empty()) return;
  RankMemory memory = audit_.planned();  // may throw, so it must precede the truncation of the file
  if (!context_.is_rank_zero()) return;
  metrics_.emplace(path, append ? MetricsFile::Mode::kAppend : MetricsFile::Mode::kTruncate);
  // Sets `memory` to the maximum over the pipeline stages.
  for (const Plan& stage : context_.engine().pipeline_plans()) {
    const RankMemory other = audit_.planned(stage);
    for (size_t i = 0; i < memory.planned.size(); ++i)
      memory.planned[i] = std::max(memory.planned[i], other.planned[i]);
    memory.planned_peak_bytes = std::max(memory.planned_peak_bytes, other.planned_peak_bytes);
  }
  Json planned = json(memory.planned);
  planned["peak"] = memory.planned_peak_bytes;
  World& world = context_.world();
  const int64_t machine_bytes = machine_memory_bytes();
  const bool known = !context_.on_gpu() && machine_bytes != INT64_MAX;
  const Json memory_per_rank = known ? Json(machine_bytes / context_.node_rank_count()) : Json();
  const Plan& plan = context_.engine().plan();
  TrainOptions shown = resolved_options();
  metrics_->write(
      {{"run",
        {{"version", version()},
         {"options", option_values(train_option_table(shown))},
         {"model", Json::parse(config_text(model_shape(shown), name(*shown.precision)))},
         {"world",
          {{"ranks", world.rank_count()},
           {"nodes", world.topology().node_count()},
           {"transport", world.communicator().describe()},
           {"device", world.device().describe()},
           {"memory_per_rank", memory_per_rank}}},
         {"plan",
          {{"memory", planned}, {"operations", plan.schedule.operations.size()}, {"step", step_plan_json(plan)}}}}}});
}

/// A write error, such as a full disk, ends the metrics but not the training.
void TrainReporter::write_metrics(const Json& line) {
  if (!metrics_) return;
  try {
    metrics_->write(line);
  } catch (const FaultError& error) {
    metrics_.reset();
    warning(fmt::format("{} Training continues without metrics.", error.what()));
  }
}

void TrainReporter::write_failure(const FaultError& error) noexcept {
  try {
    Json failure = {{"reason", error.what()}};
    if (const auto* replay = dynamic_cast<const ReplayError*>(&error)) {
      const ReplayError::Finding& finding = replay->finding();
      failure["ranks"] = finding.ranks;
      failure["nodes"] = finding.nodes;
      failure["hosts"] = finding.hosts;
      failure["decided"] = finding.is_decided;
      failure["unit"] = finding.unit;
      failure["block"] = finding.block;
    }
    write_metrics({{"failure", failure}});
  } catch (...) {  // the failure itself is reported by the caller
  }
}

bool TrainReporter::writes_metrics(const StepOutcome& step) const {
  const TrainOptions& options = context_.options();
  const int64_t number = step.report.step;
  return !options.metrics.empty() &&
         (is_due(number, options.metrics_every) || is_due(number, options.digest_every) || step.eval_loss.has_value());
}

/// Collective: all ranks contribute to the digest and to the straggler report.
void TrainReporter::write_step(const StepRecord& record, const StepOutcome& step) {
  const TrainOptions& options = context_.options();
  if (options.metrics.empty()) return;
  std::string digest;
  if (is_due(record.step, options.digest_every)) digest = weight_digest();
  if (metrics_ && writes_metrics(step)) {
    Json extra;
    if (!digest.empty()) extra["digest"] = digest;
    if (step.eval_loss) extra["eval_loss"] = *step.eval_loss;
    if (options.engine.check_state) extra["state_check_seconds"] = rounded(step.report.state_check_seconds);
    if (options.engine.replay_every != 0) extra["replay_seconds"] = rounded(step.report.replay_seconds);
    if (options.precision == DType::kFloat16) extra["loss_scale"] = step.report.loss_scale;
    write_metrics(json(record, extra));
  }
  if (is_due(record.step, options.stragglers_every)) report_stragglers();
}

void TrainReporter::write_done(const std::vector<RankMemory>& memory, const std::string& digest, const Json& pipeline) {
  if (!metrics_) return;
  Engine& engine = context_.engine();
  Json last = json(done_record(memory, context_.options().engine.pipeline, digest, engine.step_count()));
  last["done"]["step"] = step_times_json(engine.timeline(), work_seconds_[0]);
  if (!pipeline.is_null()) last["done"]["pipeline"] = pipeline;
  write_metrics(last);
}

/// Reports the previous step, because the timeline of a step is complete only when the next step is done. Collective.
void TrainReporter::report_stragglers() {
  Engine& engine = context_.engine();
  const Timeline own = engine.timeline();
  const RankSeconds seconds = RankSeconds::of(own);
  const std::string bytes(reinterpret_cast<const char*>(&seconds), sizeof seconds);
  std::vector<RankSeconds> ranks;
  const ScopedCollectivePurpose purpose("report", engine.step_count());
  for (const std::string& from : context_.world().communicator().gather_objects(bytes))
    std::memcpy(&ranks.emplace_back(), from.data(), sizeof(RankSeconds));
  if (!context_.is_rank_zero() || own.operations.empty()) return;
  const StragglerReport report =
      straggler_report(engine.step_count() - 1, std::move(ranks), context_.options().engine.pipeline);
  write_metrics(json(report));
  if (const auto sentence = straggler_watch_.sentence(report)) warning(*sentence);
}

}  // namespace aliquot
