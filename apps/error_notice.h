#pragma once
// Tells the other ranks of this job on this node that the first rank has printed an error, or that it has none. Works
// before MPI_Init().

#include <chrono>
#include <string_view>

namespace aliquot {

/// Called by the first rank after it has printed the error `sentence`. Creates a file in the directory that mpirun of
/// Open MPI makes for the ranks of a node. Does nothing under other launchers. Errors are ignored: the other ranks then
/// print the error too.
void note_reported_error(std::string_view sentence) noexcept;

/// Called by all ranks after their checks, before they create the world. The first rank creates a file in the same
/// directory. It tells the other ranks that the first rank did not have an error of a check.
void note_checks_passed() noexcept;

/// Called by another rank that has the error `sentence`. Waits until the first rank, on the same node, has reported the
/// same error, and returns true. Returns false after `limit`, and also as soon as the first rank has passed checks that
/// this rank has not passed.
bool first_rank_reports_error(std::string_view sentence, std::chrono::milliseconds limit) noexcept;

}  // namespace aliquot
