#pragma once
// The decision about the update of each step, and the counters that persist between steps.

#include "engine/options.h"
#include "engine/run/executor.h"
#include "sharding/state.h"

namespace aliquot {

/// Decides the update of each step from the gradient norm: learning rate, clip factor, loss scale, and whether to skip.
/// Counts steps. The engine keeps this object when set_trainable() replaces the session. Used from the rank's own
/// thread. The options must outlive it.
class StepDecider final : public StepDecision {
 public:
  /// Throws UsageError if the optimizer has a learning rate that set_learning_rate() rejects.
  StepDecider(const EngineOptions& options, int rank_count);

  /// Sets the learning rate that applies from the next step on. Throws UsageError unless 0 <= rate < 1e30.
  void set_learning_rate(double rate);
  double loss_scale() const { return scaler_.scale(); }
  /// Number of finished steps, including skipped ones.
  int64_t step_count() const { return step_count_; }

  UpdateSteps decide(const NormResult& norm) override;
  UpdateSteps decide_before_norm() override;
  /// The report of the last step that was decided.
  const StepReport& report() const { return report_; }
  void set_state_check_seconds(double seconds) { report_.state_check_seconds = seconds; }
  void set_replay_seconds(double seconds) { report_.replay_seconds = seconds; }

  /// Counts the step. `own_not_finite` is StepReport::own_not_finite. `logs`: whether to log a skipped step. Throws if
  /// EngineOptions::max_skipped steps in a row were skipped.
  const StepReport& end_step(bool own_not_finite, bool logs);

  /// The counters and the loss scale, which a checkpoint saves.
  struct Counts {
    int64_t step_count, update_count;
    LossScaler::State scale;

    std::string text() const;
  };
  void save(State& state) const;
  /// Reads the counters of a state. A scalar that the state lacks keeps its current value. Throws UsageError, which
  /// names the scalar, for an invalid value.
  Counts counts_in(const State& state) const;
  void resume(const Counts& counts);

 private:
  UpdateSteps update_steps(double factor) const;
  double part_count() const { return static_cast<double>(options_.accumulate) * rank_count_; }
  void report_skipped(bool logs);

  const EngineOptions& options_;
  int rank_count_;
  LossScaler scaler_;
  double learning_rate_ = 0;
  int64_t step_count_ = 0;    // number of steps, including skipped ones
  int64_t update_count_ = 0;  // number of updates, without those of skipped steps
  int skipped_in_a_row_ = 0;
  StepReport report_;
};

}  // namespace aliquot
