// For programs of users that tests start, by themselves and under mpirun, in builds with the address sanitizer.
#include <stdlib.h>

// The sanitizer asks it before it looks for leaks. mpi_leaks.h says why there is no looking where Open MPI was loaded.
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return getenv("OMPI_COMM_WORLD_RANK") != NULL; }
