#pragma once
// The checkpoints of one rank's run of `aliquot train`.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "apps/train/checkpoints/directory_claim.h"
#include "apps/train/checkpoints/resume_point.h"
#include "apps/train/reporting/memory_audit.h"
#include "apps/train/reporting/train_reporter.h"
#include "apps/train/train_context.h"
#include "checkpoint/background_saver.h"

namespace aliquot {

/// Loads where a run starts, and saves where it stands. Holds the claim on --checkpoint-dir from load_initial_state() on. Used by
/// the rank's own thread; every call but has_nonfinite_update() and is_saving() is collective. Context, audit and reporter outlive it.
class CheckpointKeeper {
 public:
  /// `data_tokens`: the length of the training data, which checkpoints record.
  CheckpointKeeper(const TrainContext& context, MemoryAudit& audit, TrainReporter& reporter, int64_t data_tokens);

  /// Decides whether checkpoints are written beside training, and enters the snapshot's memory in the audit's plan. Throws
  /// UnavailableError where --save snapshot does not fit in --memory-budget.
  void plan_saving();
  /// Claims --checkpoint-dir and loads what --resume or --init names, if any, into engine and `state`. Returns whether the
  /// run was resumed. Throws UnavailableError where another run holds the directory, UsageError where the checkpoint
  /// does not fit the options, and what load() throws.
  bool load_initial_state(RunState& state);
  /// Allocates the snapshot that plan_saving() planned.
  void prepare_saving();

  /// Saves, unless this step is saved already or spoiled. A save that fails ends with a warning.
  void save(const RunState& state);
  /// Saves, waits until the save is on disk, and throws if it fails.
  void save_last(const RunState& state);
  /// Waits for a save that is still being written beside training, and reports how it ended.
  void collect();
  /// Whether this rank's part of a save is still being written beside training. Not collective: ranks end at different times.
  bool is_saving() const { return saver_ != nullptr && !saver_->finished(); }
  /// Whether the weights were updated in backward from gradients that are not finite. Such a step is not saved.
  bool has_nonfinite_update(const RunState& state) const;
  /// Throws where copies of the same state differ between ranks.
  void check_copies();

 private:
  void claim_directory();
  bool resume(RunState& state);
  void load_initial_weights();
  void report_save(const std::function<std::optional<SaveReport>()>& end);

  const TrainContext& context_;
  MemoryAudit& audit_;
  TrainReporter& reporter_;
  int64_t data_tokens_;
  std::optional<DirectoryClaim> claim_;     // rank 0's; outlives the saver
  std::unique_ptr<BackgroundSaver> saver_;  // null: saves block
  int64_t saved_step_ = -1;                 // or being saved
  bool is_last_ = false;                    // no save follows, so this one must succeed
};

/// What a run is made of besides its model; compared on resume. Leaves out the number of ranks and what changes no result:
/// the same state gives the same file.
std::map<std::string, Scalar> run_scalars(const TrainOptions& options, int64_t data_tokens);

}  // namespace aliquot
