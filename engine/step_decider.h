#pragma once
// What a step does with its gradients, and the counts that steps leave behind.

#include "engine/options.h"
#include "engine/run/executor.h"
#include "sharding/state.h"

namespace aliquot {

/// Decides every update from the norm: learning rate, clip factor, loss scale, skip. Counts steps. Outlives the sessions
/// that train one after the other. Used from the rank's own thread; the options must outlive it.
class StepDecider final : public StepDecision {
 public:
  /// Throws UsageError for a learning rate that set_learning_rate() refuses.
  StepDecider(const EngineOptions& options, int rank_count);

  /// From the next step on. Throws UsageError below 0, and for what is no number.
  void set_learning_rate(double rate);
  double loss_scale() const { return scaler_.scale(); }
  /// Steps taken, skipped ones counted.
  int64_t step_count() const { return step_count_; }

  UpdateSteps decide(const NormResult& norm) override;
  UpdateSteps decide_before_norm() override;
  /// Of the last step decided.
  const StepReport& report() const { return report_; }

  /// Counts the step that was decided. `own_not_finite`: StepReport::own_not_finite; `tells`: the log sink hears of a
  /// skipped step. Throws after EngineOptions::max_skipped steps in a row were skipped.
  const StepReport& end_step(bool own_not_finite, bool tells);

  /// The counts and the loss scale, which a checkpoint holds.
  struct Counts {
    int64_t step_count, update_count;
    LossScaler::State scale;

    std::string text() const;
  };
  void save(State& state) const;
  /// Those of a state; what it lacks is as now. Throws UsageError, naming the scalar, for what cannot be.
  Counts counts_in(const State& state) const;
  void resume(const Counts& counts);

 private:
  UpdateSteps update_steps(double factor) const;
  double part_count() const { return static_cast<double>(options_.accumulate) * rank_count_; }
  void report_skipped(bool tells);

  const EngineOptions& options_;
  int rank_count_;
  LossScaler scaler_;
  double learning_rate_ = 0;
  int64_t step_count_ = 0;    // taken or skipped
  int64_t update_count_ = 0;  // taken
  int skipped_in_a_row_ = 0;
  StepReport report_;
};

}  // namespace aliquot
