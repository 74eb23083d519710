#pragma once
// Checks of the MPI that a program initialized.

#include <mpi.h>

namespace aliquot {

/// Throws UsageError, naming `function`, unless MPI is initialized and not finalized.
void require_mpi_running(const char* function);

/// Throws UnavailableError unless the program initialized MPI with MPI_THREAD_MULTIPLE.
void require_thread_multiple_of_program();

/// Throws UnavailableError unless `level`, which MPI_Init_thread() provided to Aliquot, is MPI_THREAD_MULTIPLE.
void require_thread_multiple_provided(int level);

/// Throws UnavailableError on all ranks of `comm` unless all of them initialized MPI with MPI_THREAD_MULTIPLE.
/// Collective; blocks without a timeout.
void require_thread_multiple_on_all(MPI_Comm comm);

}  // namespace aliquot
