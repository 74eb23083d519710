// Defines make_mpi_world() in a build without MPI. It always throws.
#include <fmt/format.h>

#include "sharding/world_internal.h"

namespace aliquot {

World make_mpi_world(const WorldOptions&, const LauncherInfo& launch) {
  if (launch.process_count == 1) {
    throw UnavailableError(
        "this build of aliquot has no MPI support: install MPI (on Debian: apt install libopenmpi-dev openmpi-bin) and "
        "rebuild with -DALIQUOT_MPI=ON");
  }
  throw UnavailableError(
      fmt::format("{}, but this build of aliquot has no MPI support, so each process would train alone: rebuild with "
                  "-DALIQUOT_MPI=ON, or start one process without {} and use threads as ranks (World::threads())",
                  launch.text(), launch.by));
}

}  // namespace aliquot
