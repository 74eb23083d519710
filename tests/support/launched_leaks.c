// For user programs that tests start alone and under mpirun, in builds with AddressSanitizer.
#include <stdlib.h>

// LeakSanitizer calls this before it looks for leaks. Under Open MPI the check is off, for the reason in mpi_leaks.h.
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return getenv("OMPI_COMM_WORLD_RANK") != NULL; }
