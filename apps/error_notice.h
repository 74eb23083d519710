#pragma once
// Tells the other ranks of this job on this node that the first rank has printed an error. Works before MPI_Init().

#include <chrono>
#include <string_view>

namespace aliquot {

/// Called by the first rank after it has printed the error `sentence`. Creates a file in the directory that mpirun of
/// Open MPI makes for the ranks of a node. Does nothing under other launchers. Errors are ignored: the other ranks then
/// print the error too.
void note_reported_error(std::string_view sentence) noexcept;

/// Called by another rank that has the error `sentence`. Waits until the first rank, on the same node, has reported the
/// same error, and returns true. Returns false after `limit`.
bool first_rank_reports_error(std::string_view sentence, std::chrono::milliseconds limit) noexcept;

}  // namespace aliquot
