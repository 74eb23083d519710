#pragma once
// Tells the other ranks of a launcher on this node which error the first rank has reported, also without MPI.

#include <chrono>
#include <string_view>

namespace aliquot {

/// Called by the first rank after it has printed the error `sentence`. Has an effect only under Open MPI's mpirun,
/// which gives the ranks of a node a directory. Ignores errors.
void note_reported_error(std::string_view sentence) noexcept;

/// Called by another rank that has the error `sentence`. Waits until the first rank, on the same node, has reported the
/// same error, and returns true. Returns false after `limit`.
bool first_rank_reports_error(std::string_view sentence, std::chrono::milliseconds limit) noexcept;

}  // namespace aliquot
