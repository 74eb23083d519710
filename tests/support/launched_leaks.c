// Turns off the search for memory leaks in processes that mpirun starts. Builds with AddressSanitizer link this file
// into the command `aliquot` and the examples. Tests start these programs alone and under mpirun.
#include <stdlib.h>

// LeakSanitizer calls this before it searches for leaks, and does not search if the result is not 0. mpi_leaks.h states
// why it must not search under Open MPI.
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return getenv("OMPI_COMM_WORLD_RANK") != NULL; }
