#pragma once
// The exchange of ranks that are threads of one process.

#include <memory>

#include "sharding/comm/exchange.h"

namespace aliquot {

/// Where the threads of one world meet. Shared by their exchanges.
class ThreadsHub;

std::shared_ptr<ThreadsHub> make_threads_hub(int rank_count, double timeout_seconds);

/// One rank's side. May be made and used from any one thread.
std::unique_ptr<Exchange> make_threads_exchange(std::shared_ptr<ThreadsHub> hub, int rank);

/// The rank's function has returned: whoever waits for it, now or later, leaves.
void note_return(ThreadsHub& hub, int rank) noexcept;

/// As Exchange::abort, for who has no exchange: the thread that waits for the ranks.
void abort(ThreadsHub& hub, std::string_view why) noexcept;

}  // namespace aliquot
