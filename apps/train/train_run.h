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

/// The training loop, which owns all parts of the run. Made and used by the rank's own thread. Every call is
/// collective and throws what its members throw. The world and the data must outlive it.
class TrainRun {
 public:
  /// `options` must be resolved. Makes the model and the engine, without large allocations. `evaluated` is the
  /// validation data or null.
  TrainRun(World& world, const TrainOptions& options, const TokenSource& data, const TokenSource* evaluated);

  /// Prints options, planned memory and schedule, on rank 0.
  void print_plan();
  /// Trains to the last step or to a stop request, then prints the result. Returns the exit code of the command.
  ExitCode run();

 private:
  void prepare();
  void step();
  std::vector<double> run_micro_batches(int64_t target_count);
  double sum_and_agree(std::span<const double> own_losses, int64_t step);
  bool skips_spike(double loss);
  bool is_due(int64_t every) const { return every > 0 && context_.engine().step_count() % every == 0; }
  double evaluate();
  ExitCode finish(ExitCode code);
  ExitCode stop();
  std::string saved_sentence() const;

  SystemPeak system_peak_;  // the first member, so that it measures the process before other members allocate memory
  TrainData data_;
  TrainContext context_;
  MemoryAudit audit_;
  TrainReporter reporter_;
  CheckpointKeeper keeper_;
  RateSchedule rates_;
  RunState state_;
  int stop_signal_ = 0;             // the stop signal that the ranks agreed on; 0 means none
  bool no_save_in_flight_ = false;  // whether, at the last sum_and_agree(), no rank was saving in the background
};

}  // namespace aliquot
