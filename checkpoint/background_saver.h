#pragma once
// Saving while training goes on: a copy of the shard, and a thread that writes it.

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

/// At most one save at a time. Its collectives run over a group of their own, so they meet no others; all of its memory is
/// there, and booked, from the start. Used from the rank's own thread; every call but finished() and in_flight() is
/// collective, and all ranks make them in the same order.
class BackgroundSaver {
 public:
  /// `capacity_bytes` is for this rank's snapshot (snapshot_bytes()). Communicator and ledger outlive it.
  BackgroundSaver(Communicator& communicator, int64_t capacity_bytes, Ledger* ledger);
  /// Waits for the save in flight; how it ended is lost.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// Copies the state and returns; what it points to may change at once. A save that is still in flight is waited for: its
  /// report is returned, and if it failed, its error is thrown and nothing is started. Staging and ledger of `options` are
  /// set here. A rank that cannot copy fails the save on all.
  std::optional<SaveReport> start(const State& state, const std::filesystem::path& directory, SaveOptions options);

  /// Whether a save was started and its end not yet told.
  bool in_flight() const { return pending_save_.valid(); }
  /// Whether this rank's part of it is over. Ranks come to that at different times: agree before acting on it.
  bool finished() const;
  /// Waits for the save in flight and tells how it ended: the report; or throws what save() throws, on every rank the
  /// same, and the older checkpoints stand. Nothing when none is.
  std::optional<SaveReport> collect();

 private:
  SaveReport write(const std::filesystem::path& directory, const SaveOptions& options,
                   const std::exception_ptr& copy_failure);

  Communicator& communicator_;
  std::unique_ptr<Communicator> background_communicator_;  // of the saving thread
  Snapshot snapshot_;
  StagingRing staging_;
  std::future<SaveReport> pending_save_;  // last: its destructor waits
};

}  // namespace aliquot
#pragma GCC visibility pop
