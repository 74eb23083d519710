// AddressSanitizer builds link this into user programs, which tests start alone and under mpirun.
#include <stdlib.h>

// LeakSanitizer calls this before it searches for leaks. Disables it under Open MPI, for the reason in mpi_leaks.h.
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return getenv("OMPI_COMM_WORLD_RANK") != NULL; }
