// What a run tells: plan, metrics, memory and digest.
#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>

#include "apps/models/hugging_face.h"
#include "apps/say.h"
#include "apps/train/digest.h"
#include "apps/train/step_record.h"
#include "apps/train/system_memory.h"
#include "apps/train/train_run.h"
#include "apps/version.h"
#include "checkpoint/save.h"
#include "kernels/system/machine_memory.h"
#include "sharding/comm/exchange_purpose.h"

namespace aliquot {
namespace {

constexpr size_t kMemoryFigures = kCategoryCount + 2;

std::string name_of(const StateTensor& tensor) { return tensor.path.substr(tensor.path.find('/') + 1); }

}  // namespace

RankMemory TrainRun::planned_memory() {
  const Schedule& schedule = engine_->plan().schedule;
  const Account planned = account(schedule);
  const bool has_checkpoints = !options_.checkpoint_dir.empty() || options_.resume != "none" || !options_.init.empty();
  // What is staged between steps; planned.peak has the engine's own.
  const int64_t between_steps = std::max(schedule.stream_bytes, !snapshots_ && has_checkpoints ? kStagingBytes : 0);
  const int64_t background = snapshots_ ? kStagingBytes + snapshot_capacity() : 0;
  RankMemory memory;
  memory.planned = planned.peak;
  // Slots of what is offloaded are empty between steps.
  int64_t& staging = memory.planned[static_cast<size_t>(Category::kStaging)];
  staging = background + std::max(staging, between_steps);
  memory.planned_peak_bytes = background + std::max(planned.peak_bytes, standing_bytes(schedule) + between_steps);
  return memory;
}

// Ranks that share a GPU share what is taken of it beyond all their ledgers.
void TrainRun::measure_outside_on_gpu() {
  const Topology& topology = world_.topology();
  const int own = world_.rank();
  int64_t held = 0, sharers = 0;
  const auto said = world_.communicator().gather_objects(std::to_string(world_.device().ledger().held_bytes()));
  for (int r = 0; r < world_.rank_count(); ++r) {
    if (topology.node_of_rank[r] != topology.node_of_rank[own] || topology.gpu_of_rank[r] != topology.gpu_of_rank[own])
      continue;
    held += std::stoll(said[static_cast<size_t>(r)]);
    ++sharers;
  }
  const int64_t taken_bytes = taken_gpu_bytes(world_.device());
  system_bytes_ = taken_bytes / sharers;
  outside_bytes_ = (taken_bytes - held) / sharers;
}

int64_t TrainRun::ranks_of_process() const { return launched_process_count() > 1 ? 1 : world_.rank_count(); }

// Ranks that are threads share what their process holds beyond all their ledgers.
void TrainRun::measure_outside() {
  if (on_gpu()) return measure_outside_on_gpu();
  double held = static_cast<double>(world_.device().ledger().held_bytes());
  const bool own_process = launched_process_count() > 1;
  if (!own_process) {
    world_.communicator().all_reduce(*stream_, {&held, 1}, Reduction::kSum, {"memory", engine_->step_count()});
    stream_->synchronize();
  }
  const int64_t sharers = ranks_of_process();
  const int64_t share_bytes = process_share_bytes();
  system_bytes_ = share_bytes / sharers;
  outside_bytes_ = (share_bytes - static_cast<int64_t>(held)) / sharers;
}

/// With what "auto" came to here.
TrainOptions TrainRun::resolved_options() const {
  TrainOptions o = options_;
  const Plan& plan = engine_->plan();
  if (o.device == "auto") o.device = on_gpu() ? "cuda" : "host";
  if (o.world == "auto") o.world = launched_process_count() <= 1 ? "threads" : on_gpu() ? "nccl" : "mpi";
  if (o.gather == "auto") o.gather = plan.schedule.view ? "view" : "copy";
  if (o.save == "auto") o.save = snapshots_ ? "snapshot" : "blocking";
  if (o.progress == "auto")
    o.progress = progress_style(o.progress, false, stdout) == ProgressStyle::kBar ? "bar" : "lines";
  if (o.recompute != "auto") return o;
  Policy policy = plan.policy;
  const auto chosen = recomputed_uses(plan.model, policy);
  for (const char* word : {"block", "none"}) {
    policy.recompute = *recompute_count(word);
    if (recomputed_uses(plan.model, policy) == chosen) o.recompute = word;
  }
  return o;
}

void TrainRun::print_plan() {
  snapshots_ = saves_in_background();
  const RankMemory memory = planned_memory();
  const Plan& plan = engine_->plan();
  if (!leads()) return;
  TrainOptions shown = resolved_options();
  const Json values = train_option_table(shown).values();
  for (const auto& [name, value] : values.items()) {
    if (name != "config" && name != "dry-run") say("{} = {}\n", name, text_of(value));
  }
  say("\nmodel {}: {}\n", model_name(options_), numbers_text(model_shape(options_)));
  say("\nplanned memory of each rank\n");
  for (int i = 0; i < kCategoryCount; ++i) {
    const int64_t bytes = memory.planned[static_cast<size_t>(i)];
    if (bytes > 0) say("  {:<14}{:>16}  {}\n", name(static_cast<Category>(i)), bytes, bytes_text(bytes));
  }
  say("  {:<14}{:>16}  {}\n\n", "peak", memory.planned_peak_bytes, bytes_text(memory.planned_peak_bytes));
  if (!plan.choice.empty()) {
    say("chosen to fit the budget: {}{}\n\n", plan.choice,
        keeps_logits_ ? "" : "; logits are made tile by tile, twice");
  }
  say("{}", text(plan));
}

void TrainRun::begin_metrics(bool append) {
  if (options_.metrics.empty()) return;
  const RankMemory memory = planned_memory();
  if (!leads()) return;
  metrics_.emplace(options_.metrics, append ? MetricsFile::Mode::kAppend : MetricsFile::Mode::kAnew);
  Json planned = json(memory.planned);
  planned["peak"] = memory.planned_peak_bytes;
  const Topology& topology = world_.topology();
  const int64_t machine_bytes = machine_memory_bytes();
  const bool known = world_.device().kind() == DeviceKind::kHost && machine_bytes != INT64_MAX;
  const Json memory_per_rank = known ? Json(machine_bytes / ranks_here()) : Json();
  TrainOptions shown = resolved_options();
  metrics_->write({{"run",
                    {{"version", version()},
                     {"options", train_option_table(shown).values()},
                     {"model", Json::parse(config_text(model_shape(shown), name(parse_dtype(shown.precision))))},
                     {"world",
                      {{"ranks", world_.rank_count()},
                       {"nodes", topology.node_count()},
                       {"transport", world_.communicator().describe()},
                       {"device", world_.device().describe()},
                       {"memory_per_rank", memory_per_rank}}},
                     {"plan",
                      {{"memory", planned},
                       {"operations", engine_->plan().schedule.operations.size()},
                       {"step", step_plan_json(engine_->plan())}}}}}});
}

/// A disk that is full ends the record, not the training.
void TrainRun::write_metrics(const Json& line) {
  if (!metrics_) return;
  try {
    metrics_->write(line);
  } catch (const FaultError& error) {
    metrics_.reset();
    progress_->finish();
    warn("{} Training goes on without further metrics.", error.what());
  }
}

/// Of the step before: what its collectives were hidden under is known when the next one is done. Collective.
void TrainRun::report_stragglers() {
  const Timeline own = engine_->timeline();
  const RankSeconds seconds = RankSeconds::of(own);
  const std::string bytes(reinterpret_cast<const char*>(&seconds), sizeof seconds);
  std::vector<RankSeconds> ranks;
  const ExchangePurpose purpose("report", engine_->step_count());
  for (const std::string& from : world_.communicator().gather_objects(bytes))
    std::memcpy(&ranks.emplace_back(), from.data(), sizeof(RankSeconds));
  if (!leads() || own.operations.empty()) return;
  const StragglerReport report = straggler_report(engine_->step_count() - 1, std::move(ranks));
  write_metrics(json(report));
  const auto sentence = straggler_watch_.sentence(report);
  if (!sentence) return;
  progress_->finish();
  warn("{}", *sentence);
}

MemoryRecord TrainRun::most_memory() {
  const Ledger& ledger = world_.device().ledger();
  std::array<double, kMemoryFigures> figures{};
  const BytesByCategory peak = ledger.peak();
  for (size_t i = 0; i < peak.size(); ++i) figures[i] = static_cast<double>(peak[i]);
  figures[kCategoryCount] = static_cast<double>(ledger.in_use_peak_bytes());
  figures[kCategoryCount + 1] = static_cast<double>(outside_bytes_);
  world_.communicator().all_reduce(*stream_, figures, Reduction::kMax, {"memory", engine_->step_count()});
  stream_->synchronize();
  MemoryRecord most;
  for (size_t i = 0; i < peak.size(); ++i) most.by_category[i] = static_cast<int64_t>(figures[i]);
  most.peak_bytes = static_cast<int64_t>(figures[kCategoryCount]);
  most.outside_bytes = static_cast<int64_t>(figures[kCategoryCount + 1]);
  return most;
}

std::vector<RankMemory> TrainRun::memory_of_ranks() {
  RankMemory own = planned_memory();
  const Ledger& ledger = world_.device().ledger();
  own.measured = ledger.peak();
  own.measured_peak_bytes = ledger.in_use_peak_bytes();
  own.outside_bytes = outside_bytes_;
  own.system_bytes = system_bytes_;
  own.system_peak_bytes = system_peak_.bytes() / ranks_of_process();
  own.system_start_bytes = system_peak_.start_bytes() / ranks_of_process();
  own.system_peak_phase = system_peak_.phase();
  std::vector<RankMemory> ranks;
  const std::string bytes(reinterpret_cast<const char*>(&own), sizeof(own));
  for (const std::string& from : world_.communicator().gather_objects(bytes)) {
    std::memcpy(&ranks.emplace_back(), from.data(), sizeof(RankMemory));
  }
  return ranks;
}

std::string TrainRun::weight_digest() {
  const InPhase digesting(*this, RunPhase::kDigest);
  WeightDigest digest;
  for (const StateTensor& tensor : engine_->state().tensors) {
    if (!tensor.path.starts_with("parameters/")) continue;
    Sha256 sha;
    engine_->read(name_of(tensor), [&](int64_t, std::span<const float> values) {
      if (leads()) sha.update(std::as_bytes(values));
    });
    if (leads()) digest.add(name_of(tensor), tensor.dtype, tensor.shape, sha.finish());
  }
  return digest.finish();
}

ExitCode TrainRun::finish(ExitCode code) {
  progress_->finish();
  measure_outside();
  const std::string digest = weight_digest();
  const std::vector<RankMemory> memory = memory_of_ranks();
  if (leads()) tell_result(code, memory, digest);
  if (!options_.trace.empty()) write_trace_file();  // the last, so that a disk that is full takes nothing else away
  return code;
}

void TrainRun::tell_result(ExitCode code, const std::vector<RankMemory>& memory, const std::string& digest) {
  DoneRecord done{.digest = digest, .steps = engine_->step_count()};
  for (const RankMemory& rank : memory) {
    for (size_t i = 0; i < done.planned.size(); ++i) {
      done.planned[i] = std::max(done.planned[i], rank.planned[i]);
      done.measured[i] = std::max(done.measured[i], rank.measured[i]);
    }
    done.planned_peak_bytes = std::max(done.planned_peak_bytes, rank.planned_peak_bytes);
    done.measured_peak_bytes = std::max(done.measured_peak_bytes, rank.measured_peak_bytes);
    done.system_bytes = std::max(done.system_bytes, rank.system_bytes);
    done.system_start_bytes = std::max(done.system_start_bytes, rank.system_start_bytes);
    if (rank.system_peak_bytes <= done.system_peak_bytes) continue;
    done.system_peak_bytes = rank.system_peak_bytes;
    done.system_peak_phase = name(rank.system_peak_phase);
  }
  if (metrics_) {
    Json last = json(done);
    last["done"]["step"] = step_times_json(engine_->timeline(), part_seconds_[0]);
    write_metrics(last);
  }
  if (!options_.quiet && stepped_) say("{}", memory_table(memory));
  say("digest {}\n", digest);
  if (code == ExitCode::kNotFinite && spikes_in_a_row_ > 0) {
    warn("the losses of {} steps in a row were spikes (--max-skipped): try a lower --lr.", spikes_in_a_row_);
  } else if (code == ExitCode::kNotFinite) {
    warn("{} steps in a row were not finite (--max-skipped): try a lower --lr or --clip.", not_finite_in_a_row_);
  }
}

}  // namespace aliquot
