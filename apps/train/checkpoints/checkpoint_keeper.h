#pragma once
// Saves and loads the checkpoints of a run of `aliquot train`.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "apps/checkpoints/saved_adapters.h"
#include "apps/train/checkpoints/directory_claim.h"
#include "apps/train/checkpoints/resume_point.h"
#include "apps/train/reporting/memory_audit.h"
#include "apps/train/reporting/train_reporter.h"
#include "apps/train/train_context.h"
#include "checkpoint/background_saver.h"

namespace aliquot {

/// Loads the state from which a run starts, and saves checkpoints. load_initial_state() claims --checkpoint-dir for the
/// rest of the run. Used by the rank's own thread. Every call except has_nonfinite_update() and is_saving() is
/// collective. Context, audit and reporter must outlive it.
class CheckpointKeeper {
 public:
  /// `data` describes the training data: see data_scalars(). Checkpoints record it.
  CheckpointKeeper(const TrainContext& context, MemoryAudit& audit, TrainReporter& reporter,
                   std::map<std::string, Scalar> data);

  /// Decides whether checkpoints are saved in the background, and if so adds the snapshot to the audit's planned
  /// memory. Throws UnavailableError if --save snapshot does not fit in --memory-budget.
  void plan_saving();
  /// Claims --checkpoint-dir, and loads the checkpoint of --resume or the weights of --init, if any, into the engine
  /// and `state`. Returns whether the run was resumed. Throws UnavailableError if another run has claimed the
  /// directory, UsageError if the checkpoint contradicts the options, and the exceptions of load().
  bool load_initial_state(RunState& state);
  /// Allocates the snapshot that plan_saving() planned.
  void prepare_saving();

  /// Saves the current step, unless it is already saved or has_nonfinite_update(). A failed save is only a warning.
  void save(const RunState& state);
  /// Saves, waits until the save is on disk, and throws if it fails.
  void save_last(const RunState& state);
  /// Waits for the background save in flight, if any, and reports its result.
  void collect();
  /// The step of the most recent save, which may be in flight; -1 if there was none, or if it failed.
  int64_t saved_step() const { return saved_step_; }
  /// Whether this rank is still writing its part of a background save. Ranks finish at different times.
  bool is_saving() const { return saver_ != nullptr && !saver_->finished(); }
  /// Whether --update-in-backward applied gradients that are not finite in the last step. Such a step is not saved.
  bool has_nonfinite_update(const RunState& state) const;
  /// Throws FaultError if copies of the same state differ between ranks.
  void check_copies();

 private:
  void claim_directory();
  void set_base(const std::string& path);
  bool resume(RunState& state);
  void report_save(const std::function<std::optional<SaveReport>()>& end);

  const TrainContext& context_;
  MemoryAudit& audit_;
  TrainReporter& reporter_;
  std::map<std::string, Scalar> data_;
  std::optional<SavedAdapters> adapters_;   // what checkpoints record about adapters; empty without --lora
  std::optional<DirectoryClaim> claim_;     // on rank 0 only; must outlive the saver
  std::unique_ptr<BackgroundSaver> saver_;  // null: saves are blocking
  int64_t saved_step_ = -1;                 // see saved_step()
  bool is_last_ = false;                    // true from save_last() on: a failed save is then an error
};

/// Loads the weights of --init into the engine, and the adapters of options.adapters if it is set. Returns the path of
/// the weights: if --init is a directory of checkpoints, that of the loaded one. Throws UsageError if they contradict
/// the options, and the exceptions of load(). Collective.
std::filesystem::path load_initial_weights(const TrainContext& context);

/// Returns the part of the engine's state that checkpoints contain: with --lora, without the parameters of the base.
State saved_part(State state, const TrainOptions& options);

/// Returns `data` and the options that affect results, except the model's shape, as scalars of a checkpoint. A resumed
/// run warns if its options differ from those in the checkpoint. The scalars do not include the number of ranks, so
/// that every world writes the same file for the same state.
std::map<std::string, Scalar> run_scalars(const TrainOptions& options, std::map<std::string, Scalar> data);

}  // namespace aliquot
