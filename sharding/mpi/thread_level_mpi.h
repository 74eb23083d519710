#pragma once
// Checks of the MPI that a program initialized.

#include <mpi.h>

namespace aliquot {

/// Throws UsageError, naming `function`, unless MPI is initialized and not finalized.
void require_mpi_running(const char* function);

/// Returns the thread level with which this process initialized MPI.
int query_thread_level();

/// Throws UnavailableError unless `level` is MPI_THREAD_MULTIPLE. `initialized_by`: the program or Aliquot.
void require_thread_multiple(const char* initialized_by, int level);

/// Throws UnavailableError on all ranks of `comm` unless all of them initialized MPI with MPI_THREAD_MULTIPLE.
/// Collective; blocks without a timeout.
void require_thread_multiple_on_all(MPI_Comm comm);

}  // namespace aliquot
