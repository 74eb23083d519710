#pragma once
/* Worlds of the ranks of an MPI communicator, for C and C++. Only this header of Aliquot includes mpi.h. A communicator
 * is passed to the library as its Fortran handle, an integer, because MPI_Comm is another type in each MPI.
 */

#include <aliquot/c.h>

/* Without the C++ bindings, which MPI 3 removed, a C++ program needs only the C library of MPI. */
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

/** Creates the world of the ranks of `communicator`: see aliquot_world_from_mpi_f(). */
static inline int aliquot_world_from_mpi(MPI_Comm communicator, const aliquot_options* options, aliquot_world** world) {
  return aliquot_world_from_mpi_f(MPI_Comm_c2f(communicator), options, world);
}

#ifdef __cplusplus

#include "sharding/world.h"

namespace aliquot {

template <>
inline World World::from_mpi(MPI_Comm communicator, const WorldOptions& options) {
  return from_mpi_handle(MPI_Comm_c2f(communicator), options);
}

}  // namespace aliquot

#endif
