#pragma once
// Saving in the background: start() copies the state, and a thread writes the copy while training continues.

#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>

#include "checkpoint/file/io_lane.h"
#include "checkpoint/save.h"
#include "checkpoint/snapshot.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Runs at most one save at a time. The saving thread uses its own communicator, so its collectives do not mix with
/// those of training. The constructor allocates all memory and records it in the ledger. Use it from the rank's own
/// thread. All functions except finished() and in_flight() are collective, and all ranks must call them in the same
/// order.
class BackgroundSaver {
 public:
  /// `capacity_bytes` is the size of this rank's snapshot, see snapshot_bytes(). Communicator and ledger must outlive
  /// the saver.
  BackgroundSaver(Communicator& communicator, int64_t capacity_bytes, Ledger* ledger);
  /// Waits for the save in flight and discards its result.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// Copies the state and returns; the caller may then change the original. First waits for a save that is still in
  /// flight and returns its report, or throws its error without starting a new save. Overwrites `options.staging`. If
  /// the copy fails on one rank, the save fails on all ranks.
  std::optional<SaveReport> start(const State& state, const std::filesystem::path& directory, SaveOptions options);

  /// Returns whether a save was started and neither start() nor collect() has returned its result yet.
  bool in_flight() const { return pending_save_.valid(); }
  /// Returns whether this rank's part of the save in flight has ended. Ranks may get different answers at the same
  /// step, so they must agree before they act on it.
  bool finished() const;
  /// Waits for the save in flight and returns its report, or throws the error of save(), which is the same on every
  /// rank. A failed save leaves older checkpoints intact. Returns nothing if no save is in flight.
  std::optional<SaveReport> collect();

 private:
  SaveReport write(const std::filesystem::path& directory, const SaveOptions& options,
                   const std::exception_ptr& copy_failure);

  Communicator& communicator_;
  std::unique_ptr<Communicator> background_communicator_;  // used by the saving thread
  Snapshot snapshot_;
  StagingRing staging_;
  std::future<SaveReport> pending_save_;  // last: its destructor waits for the thread that uses the other members
};

}  // namespace aliquot
#pragma GCC visibility pop
