#pragma once
// The bootstrap of ranks that are threads of one process.

#include <memory>

#include "sharding/comm/bootstrap.h"

namespace aliquot {

/// The shared state of the bootstraps of one group. Thread-safe.
class ThreadsBootstrapStore;

std::shared_ptr<ThreadsBootstrapStore> make_threads_bootstrap_store(int rank_count, double timeout_seconds);

/// Returns the bootstrap of one rank. May be created on any thread and used by one thread at a time.
std::unique_ptr<Bootstrap> make_threads_bootstrap(std::shared_ptr<ThreadsBootstrapStore> store, int rank);

/// Records that the rank's function has returned. Ranks that wait for it, now or later, throw CommunicationError.
void mark_returned(ThreadsBootstrapStore& store, int rank) noexcept;

/// The same as Bootstrap::abort(), for a thread that has no bootstrap.
void abort(ThreadsBootstrapStore& store, std::string_view why) noexcept;

}  // namespace aliquot
