#pragma once
// One rank's run of `aliquot train`.

#include <cstdint>
#include <span>
#include <vector>

#include "apps/options/train_options.h"
#include "apps/train/checkpoints/checkpoint_keeper.h"
#include "apps/train/checkpoints/resume_point.h"
#include "apps/train/reporting/memory_audit.h"
#include "apps/train/reporting/system_memory.h"
#include "apps/train/reporting/train_reporter.h"
#include "apps/train/train_context.h"
#include "apps/train/train_data.h"
#include "kernels/system/error.h"
#include "optim/schedule.h"
#include "sharding/world.h"

namespace aliquot {

/// The training loop. Owns the parts of the run. Made and used by the rank's own thread; all ranks make the same calls. World
/// and data outlive it. Errors of the parts pass through.
class TrainRun {
 public:
  /// `options` are resolved. Makes the model and its plan; allocates nothing large.
  /// `evaluated`: the validation data; null: there is none.
  TrainRun(World& world, const TrainOptions& options, const TokenSource& data, const TokenSource* evaluated);

  /// Rank 0 prints options, memory and schedule.
  void print_plan();
  /// Trains to the end, or until asked to stop, and reports. Returns the exit code of the command.
  ExitCode run();

 private:
  void prepare();
  void step();
  std::vector<double> run_micro_batches();
  double agree(std::span<const double> own_losses, int64_t step);
  bool skips_spike(double loss);
  bool is_due(int64_t every) const { return every > 0 && context_.engine().step_count() % every == 0; }
  double evaluate();
  ExitCode finish(ExitCode code);
  ExitCode stop();

  SystemPeak system_peak_;  // first: it measures what the others take
  TrainData data_;
  TrainContext context_;
  MemoryAudit audit_;
  TrainReporter reporter_;
  CheckpointKeeper keeper_;
  RateSchedule rates_;
  RunState state_;
  int stop_signal_ = 0;           // by which some rank was asked to stop; 0: none was
  bool saving_disabled_ = false;  // on any rank
};

}  // namespace aliquot
