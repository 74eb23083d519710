#pragma once
// The bootstrap of ranks that are threads of one process.

#include <memory>

#include "sharding/comm/bootstrap.h"

namespace aliquot {

/// Where the threads of one world meet. Shared by their exchanges.
class ThreadsBootstrapStore;

std::shared_ptr<ThreadsBootstrapStore> make_threads_bootstrap_store(int rank_count, double timeout_seconds);

/// One rank's side. May be made and used from any one thread.
std::unique_ptr<Bootstrap> make_threads_bootstrap(std::shared_ptr<ThreadsBootstrapStore> store, int rank);

/// The rank's function has returned: whoever waits for it, now or later, leaves.
void mark_returned(ThreadsBootstrapStore& store, int rank) noexcept;

/// As Bootstrap::abort, for who has no bootstrap: the thread that waits for the ranks.
void abort(ThreadsBootstrapStore& store, std::string_view why) noexcept;

}  // namespace aliquot
