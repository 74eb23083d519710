#include <algorithm>
#include <fmt/format.h>
#include <sched.h>

#include "kernels/shared_counter.h"
#include "sharding/communicator_mpi.h"
#include "sharding/communicator_nccl.h"
#include "sharding/gpu_ranks.h"
#include "sharding/node_memory_mpi.h"
#include "sharding/world_parts.h"

namespace aliquot {
namespace {

void refuse_separate_worlds(const Launch& launch, int rank_count) {
  if (rank_count >= launch.process_count) return;
  const std::string advice =
      launch.by == "srun" ? fmt::format("type srun --mpi=pmix (srun --mpi=list shows what yours has), or mpirun -n {}",
                                        launch.process_count)
                          : "start them with the mpirun of the MPI that aliquot was built with";
  throw UnavailableError(
      fmt::format("{} started {} processes, but MPI made a world of {} of this one, so each would train "
                  "alone: {}",
                  launch.by, launch.process_count, rank_count, advice));
}

// Launchers bind ranks to cores in many ways: a core that k ranks of the node may run on counts 1/k for each of them.
double share_of_cores(Exchange& node) {
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof own, &own);
  const auto masks = node.all({reinterpret_cast<const char*>(&own), sizeof own});
  double share = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &own)) continue;
    share += 1.0 / static_cast<double>(std::count_if(masks.begin(), masks.end(), [core](const std::string& mask) {
               return CPU_ISSET(core, reinterpret_cast<const cpu_set_t*>(mask.data()));
             }));
  }
  return share + 1e-6;  // thirds and sevenths must add up to whole cores
}

/// One GPU a rank, over NCCL; MPI carries what sets it up.
World make_gpu_world(const WorldOptions& options, std::unique_ptr<MpiExchange> world) {
  Topology topology = find_topology(*world);
  std::vector<int> ranks_on_node(static_cast<std::size_t>(topology.node_count()), 0);
  std::vector<int> places;
  for (const int node : topology.node_of_rank) places.push_back(ranks_on_node[node]++);
  auto device = make_cuda_device(gpu_for(places[world->rank()]));
  const auto gpus = world->all(std::to_string(gpu_for(places[world->rank()])));
  for (int r = 0; r < world->rank_count(); ++r) topology.gpu_of_rank[r] = std::stoi(gpus[r]);
  NcclSetup setup{.exchange = std::move(world),
                  .topology = std::move(topology),
                  .make_node_memory = make_process_node_memory,
                  .options = {.timeout_seconds = options.timeout_seconds}};
  auto communicator = make_nccl_communicator(*device, std::move(setup));
  return World(std::move(device), std::move(communicator));
}

}  // namespace

World make_mpi_world(const WorldOptions& options, const Launch& launch) {
  start_mpi();
  auto world = std::make_unique<MpiExchange>(MPI_COMM_WORLD, options.timeout_seconds);
  refuse_separate_worlds(launch, world->rank_count());
  if (use_gpus(options)) return make_gpu_world(options, std::move(world));
  const double share = share_of_cores(*world->split_by_node());
  if (share < 1) SharedCounter::set_spin_nanoseconds(0);
  auto device = make_rank_device(options, world->rank(), static_cast<int>(share));
  Topology topology = find_topology(*world);
  auto communicator = make_mpi_communicator(*device, std::move(world), std::move(topology));
  return World(std::move(device), std::move(communicator));
}

}  // namespace aliquot
