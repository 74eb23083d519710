#pragma once
// The printed output, metrics and trace of `aliquot train`.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/metrics/metrics.h"
#include "apps/models/layers/work_time.h"
#include "apps/train/checkpoints/resume_point.h"
#include "apps/train/reporting/memory_audit.h"
#include "apps/train/reporting/progress.h"
#include "apps/train/reporting/stragglers.h"
#include "apps/train/train_context.h"
#include "kernels/system/error.h"

namespace aliquot {

/// The result of one step on one rank.
struct StepOutcome {
  StepReport report;
  double loss = 0;      // the mean over all tokens of the step
  double own_loss = 0;  // the sum over this rank's tokens
  double seconds = 0;
  WorkSeconds parts{};  // seconds of the model's computation by kind of work
  std::optional<double> eval_loss;
};

/// Prints plan, progress, warnings and result, and writes the files of --metrics and --trace, all on rank 0. All ranks
/// must make the same calls. Used by the rank's own thread. Context and audit must outlive it.
class TrainReporter {
 public:
  TrainReporter(const TrainContext& context, MemoryAudit& audit);

  /// Prints options, memory and schedule.
  void print_plan() const;
  /// With --metrics, opens the file and writes a line that describes the run. Set `append` for a resumed run. Throws
  /// UsageError if the file cannot be opened, and FaultError if it cannot be written.
  void begin_metrics(bool append);
  /// Prints what the run will do: model, ranks, batch, data and planned memory. `data_tokens` is the length of the
  /// training data.
  void print_banner(int64_t data_tokens) const;
  /// Starts the lines or the bar of --progress. The run stops after `last_step`.
  void begin_progress(int64_t last_step);
  /// Reports a step. If --metrics cannot be written, warns and writes no more metrics. Collective.
  void end_step(const StepOutcome& step);
  /// Writes a line about a failure that ends the run to the --metrics file. Does not throw.
  void write_failure(const FaultError& error) noexcept;
  /// Prints `sentence` on standard output, on a line of its own, unless it is empty or --quiet is set.
  void note(const std::string& sentence);
  /// Prints `sentence` on standard error, on a line of its own.
  void warning(const std::string& sentence);
  /// Prints the memory table and the weight digest. Writes the last line of the --metrics file, and the --trace file.
  /// Throws FaultError if the trace cannot be written. Collective.
  void finish(ExitCode code, const RunState& state);

 private:
  TrainOptions resolved_options() const;
  /// Whether --metrics gets a line for the step. The same on all ranks.
  bool writes_metrics(const StepOutcome& step) const;
  void write_metrics(const Json& line);
  void write_step(const StepRecord& record, const StepOutcome& step);
  void write_done(const std::vector<RankMemory>& memory, const std::string& digest, const Json& pipeline);
  void report_stragglers();
  void report_not_finite(const StepReport& report, double own_loss);
  std::string weight_digest();
  void write_trace_file() const;

  const TrainContext& context_;
  MemoryAudit& audit_;
  std::optional<MetricsFile> metrics_;
  std::optional<Progress> progress_;
  StragglerWatch straggler_watch_;
  std::string state_check_sentence() const;
  std::string replay_sentence() const;

  bool stepped_ = false;  // whether a step ran; if not, finish() prints no memory
  double state_check_seconds_ = 0, replay_seconds_ = 0, step_seconds_ = 0;  // summed over steps
  int64_t replay_count_ = 0;                                                // number of steps with a replay
  int64_t step_count_ = 0;                                                  // number of steps in these sums
  std::array<WorkSeconds, 2> work_seconds_{};  // work in the last two steps, the older step first
};

}  // namespace aliquot
