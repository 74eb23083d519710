// The MPI world of a build without MPI.
#include <fmt/format.h>

#include "sharding/world_internal.h"

namespace aliquot {

World make_mpi_world(const WorldOptions&, const LauncherInfo& launch) {
  if (launch.process_count == 1) {
    throw UnavailableError(
        "this build has no MPI: install one (on Debian: apt install libopenmpi-dev openmpi-bin) and "
        "configure with -DALIQUOT_MPI=ON");
  }
  throw UnavailableError(fmt::format(
      "{}, but this build has no MPI, so each would train alone: configure with -DALIQUOT_MPI=ON, or leave out "
      "{} and use --ranks for threads",
      launch.text(), launch.by));
}

}  // namespace aliquot
