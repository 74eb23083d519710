// The functions that need MPI, in a build without MPI.
#include <fmt/format.h>

#include "sharding/launcher.h"
#include "sharding/world_internal.h"

namespace aliquot {

int process_number() noexcept { return launched_rank(); }

void limit_wait_at_exit(double) noexcept {}

World World::from_mpi_handle(int, const WorldOptions&) {
  throw UnavailableError(
      "World::from_mpi() needs MPI, but this build of aliquot has no MPI support: rebuild with -DALIQUOT_MPI=ON");
}

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
