#pragma once
// One rank's run of `aliquot train`.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "apps/inference/generator.h"
#include "apps/options/train_options.h"
#include "apps/text/token_decoder.h"
#include "apps/train/checkpoints/checkpoint_keeper.h"
#include "apps/train/checkpoints/resume_point.h"
#include "apps/train/reporting/memory_audit.h"
#include "apps/train/reporting/system_memory.h"
#include "apps/train/reporting/train_reporter.h"
#include "apps/train/train_context.h"
#include "apps/train/train_data.h"
#include "apps/train/train_text.h"
#include "kernels/system/error.h"
#include "optim/schedule.h"
#include "sharding/world.h"

namespace aliquot {

/// What a run reads. The members must outlive the run.
struct TrainInput {
  const TokenSource& data;
  const TokenSource* evaluated;  // validation data, or null
  const TrainText& text;
};

/// The training loop, which owns all parts of the run. Made and used by the rank's own thread. All ranks must call each
/// function. Throws the exceptions of its members. The world must outlive it.
class TrainRun {
 public:
  /// `options` must be resolved. Makes the model and the engine, without large allocations.
  TrainRun(World& world, const TrainOptions& options, const TrainInput& input);

  /// Prints options, planned memory and schedule, on rank 0.
  void print_plan();
  /// Trains to the last step or to a stop request, then prints the result. Returns the exit code of the command.
  ExitCode run();

 private:
  ExitCode run_steps();
  void prepare();
  void step();
  std::vector<double> run_micro_batches(int64_t target_count);
  double sum_and_agree(std::span<const double> own_losses, int64_t step);
  bool skips_spike(double loss);
  bool is_due(int64_t every) const { return every > 0 && context_.engine().step_count() % every == 0; }
  double evaluate();
  bool is_validated(int64_t step) const;
  void sample();
  void save_tokenizer_or_warn();
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
  const TrainText& text_;
  std::optional<Generator> generator_;  // the next two: only with --sample-every
  std::optional<TokenDecoder> decoder_;
  int64_t last_step_ = 0;
  int stop_signal_ = 0;             // the stop signal that the ranks agreed on; 0 means none
  bool no_save_in_flight_ = false;  // whether, at the last sum_and_agree(), no rank was saving in the background
};

}  // namespace aliquot
