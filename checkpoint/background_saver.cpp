#include "checkpoint/background_saver.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>

#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {

BackgroundSaver::BackgroundSaver(Communicator& communicator, int64_t capacity_bytes, Ledger* ledger)
    : communicator_(communicator),
      background_communicator_(communicator.split(0, communicator.rank())),
      snapshot_(capacity_bytes, ledger),
      staging_(ledger) {
  // Writes to every page of the staging memory, so that page faults do not delay a save. Snapshot does the same with
  // its memory. All memory that the ledger counts is then resident.
  for (int64_t i = 0; i < StagingRing::kChunks; ++i) std::ranges::fill(staging_.chunk(i), std::byte{0});
}

BackgroundSaver::~BackgroundSaver() {
  if (pending_save_.valid()) pending_save_.wait();
}

std::optional<SaveReport> BackgroundSaver::start(const State& state, const std::filesystem::path& directory,
                                                 SaveOptions options) {
  const ScopedCollectivePurpose purpose("save", state.step);
  std::optional<SaveReport> before = collect();
  // After this barrier every rank starts its save, even if training fails. No saving thread can therefore wait for a
  // rank that does not start a save.
  communicator_.gather_objects("save");
  std::exception_ptr failure;
  try {
    snapshot_.take(state);
  } catch (...) {
    // The saving thread reports this failure to the saving threads of the other ranks, and all of them throw it.
    failure = std::current_exception();
  }
  options.staging = &staging_;
  const auto job = [this, directory, options, failure] { return write(directory, options, failure); };
  try {
    pending_save_ = std::async(std::launch::async, job);
  } catch (const std::system_error&) {
    pending_save_ = std::async(std::launch::deferred, job);  // without a thread, collect() runs the save
  }
  return before;
}

SaveReport BackgroundSaver::write(const std::filesystem::path& directory, const SaveOptions& options,
                                  const std::exception_ptr& copy_failure) {
  const ScopedCollectivePurpose purpose("save");
  run_on_all_or_throw(*background_communicator_, [&] {
    if (copy_failure) std::rethrow_exception(copy_failure);
  });
  return save(snapshot_.state(), *background_communicator_, directory, options);
}

bool BackgroundSaver::finished() const {
  return pending_save_.valid() && pending_save_.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
}

std::optional<SaveReport> BackgroundSaver::collect() {
  if (!pending_save_.valid()) return std::nullopt;
  return pending_save_.get();
}

}  // namespace aliquot
