#pragma once
// One rank's run of `aliquot train`.

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/data/loader.h"
#include "apps/metrics/metrics.h"
#include "apps/models/model.h"
#include "apps/models/model_loops.h"
#include "apps/models/parts.h"
#include "apps/options/train_options.h"
#include "apps/train/directory_claim.h"
#include "apps/train/memory_table.h"
#include "apps/train/progress.h"
#include "apps/train/spike_guard.h"
#include "apps/train/stragglers.h"
#include "apps/train/system_memory.h"
#include "checkpoint/background_saver.h"
#include "checkpoint/load.h"
#include "engine/engine.h"
#include "kernels/system/error.h"
#include "optim/schedule.h"
#include "sharding/world.h"

namespace aliquot {

/// Adds the losses of micro-batches, each already summed over ranks, in the tree order of --reproducible. The result then has the
/// same bits however a global batch is divided into ranks and micro-batches, if both counts are powers of two and all
/// micro-batches have one size.
double sum_of_micro_batches(std::span<const double> by_micro_batch);

/// Made and used by the rank's own thread; all ranks make the same calls. World and data must outlive it.
class TrainRun {
 public:
  /// `options` are resolved. Builds the model and its plan; allocates nothing large yet.
  /// `evaluated`: what the validation loss is of; null: nothing.
  TrainRun(World& world, const TrainOptions& options, const TokenSource& data, const TokenSource* evaluated);

  /// Rank 0 prints options, memory and schedule.
  void print_plan();
  /// Trains to the end, or until asked to stop, and reports. Returns what the program ends with.
  ExitCode run();

 private:
  /// The phase is this one while the object lives, and then again the one before.
  class InPhase {
   public:
    InPhase(TrainRun& run, RunPhase phase) : peak_(run.system_peak_), before_(peak_.enter(phase)) {}
    ~InPhase() { peak_.enter(before_); }
    InPhase(const InPhase&) = delete;
    InPhase& operator=(const InPhase&) = delete;

   private:
    SystemPeak& peak_;
    RunPhase before_;
  };
  bool leads() const { return world_.rank() == 0; }
  void prepare();
  int64_t ranks_here() const;
  int64_t ranks_of_process() const;
  void refuse_what_does_not_fit();
  void find_start();
  void claim_directory();
  bool resume();
  std::optional<LoadReport> load_to_resume(State& state, const LoadOptions& how);
  void refuse_other_shape(const State& state, const std::filesystem::path& path) const;
  void start_from_weights();
  void begin_metrics(bool append);
  void write_metrics(const Json& line);
  void step();
  double agree(std::span<const double> own_losses, int64_t step);
  void sum_over_ranks(std::span<double> values, Label label);
  bool skips_spike(double loss);
  void tell_not_finite(const StepReport& report, double own_loss);
  bool should_give_up() const { return std::max(not_finite_in_a_row_, spikes_in_a_row_) >= options_.max_skipped; }
  void refuse_nothing_to_check() const;
  void check_data();
  void check_data(const TokenSource& source);
  std::string unit_of_parameter(const std::string& name) const;
  std::vector<double> run_micro_batches();
  bool evaluates() const { return options_.eval_every > 0 && engine_->step_count() % options_.eval_every == 0; }
  double evaluate();
  void write_trace_file();
  void report_stragglers();
  StepRecord record_of(const StepReport& report, double loss, double seconds);
  RankMemory planned_memory();
  void measure_outside();
  void measure_outside_on_gpu();
  MemoryRecord most_memory();
  ExitCode stop(int signal);
  std::map<std::string, Scalar> run_scalars() const;
  void make_engine(bool keeps_logits);
  bool budget_has_room();
  bool saves_in_background();
  int64_t snapshot_capacity();
  void prepare_saving();
  bool is_spoiled() const;
  void tell_spoiled();
  void check_copies();
  void save_checkpoint();
  void tell_end(const std::function<std::optional<SaveReport>()>& end);
  void collect_checkpoint();
  void save_last_checkpoint();
  ExitCode finish(ExitCode code);
  TrainOptions resolved_options() const;
  bool digest_due(int64_t step) const;
  std::string weight_digest();  // collective
  void tell_result(ExitCode code, const std::vector<RankMemory>& memory, const std::string& digest);
  std::vector<RankMemory> memory_of_ranks();
  bool on_gpu() const { return world_.device().kind() == DeviceKind::kCuda; }

  World& world_;
  TrainOptions options_;
  std::unique_ptr<Stream> stream_;  // the model computes with its threads; small sums travel on it
  std::unique_ptr<ModelLoops> loops_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  bool keeps_logits_ = true;
  const TokenSource& data_;
  const TokenSource* evaluated_data_;  // may be null
  Loader loader_;
  std::optional<Loader> evaluated_;
  RateSchedule rates_;
  std::optional<MetricsFile> metrics_;
  StragglerWatch straggler_watch_;
  std::optional<DirectoryClaim> claim_;  // of the first rank, as long as the run is
  std::optional<Progress> progress_;
  bool stepped_ = false;                    // else what was planned was not put to the test
  bool snapshots_ = false;                  // checkpoints are written while training goes on
  std::unique_ptr<BackgroundSaver> saver_;  // then
  int64_t consumed_ = 0;                    // sequences taken by all ranks before the next step
  int64_t last_step_ = 0;
  int64_t saved_step_ = -1;  // or being saved
  bool last_save_ = false;   // nothing comes after it, so it must succeed
  int64_t not_finite_in_a_row_ = 0, spikes_in_a_row_ = 0;
  int asked_by_ = 0;           // a signal by which some rank was asked to stop; 0: nobody was
  bool nobody_saves_ = false;  // on any rank
  std::optional<SpikeGuard> spikes_;
  std::array<PartSeconds, 2> part_seconds_{};  // of the last two steps
  int64_t outside_bytes_ = 0, system_bytes_ = 0;
  SystemPeak system_peak_;
};

}  // namespace aliquot
