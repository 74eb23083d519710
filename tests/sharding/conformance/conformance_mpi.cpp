#include <mpi.h>

#include "tests/sharding/conformance/conformance.h"

namespace aliquot::conformance {

// The world consists of the ranks that mpirun started. ALIQUOT_RANKS_PER_NODE sets the size of its nodes, and
// ALIQUOT_NODE_MEMORY sets the kind of memory that the ranks of a node share.
std::vector<int> world_sizes() {
  int rank_count = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &rank_count);
  return {rank_count};
}

void run_world(int, const std::function<void(World&)>& body) {
  World world =
      World::from_environment({.device = DeviceChoice::kHost, .kind = WorldChoice::kMpi, .timeout_seconds = 60});
  body(world);
}

bool sums_are_exact() { return true; }

}  // namespace aliquot::conformance
