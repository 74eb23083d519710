#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "kernels/system/shared_counter.h"
#include "sharding/cores.h"
#include "sharding/gpu_ranks.h"
#include "sharding/mpi/communicator_mpi.h"
#include "sharding/mpi/node_memory_mpi.h"
#include "sharding/nccl/communicator_nccl.h"
#include "sharding/world_internal.h"

namespace aliquot {
namespace {

// The launcher may take a few seconds to start all ranks.
constexpr double kLeastStartSeconds = 10;

void refuse_separate_worlds(const LauncherInfo& launch, int rank_count) {
  if (rank_count >= launch.process_count && rank_count >= launch.least_count) return;
  const std::string advice =
      launch.by == "srun"
          ? fmt::format("use srun --mpi=pmix (srun --mpi=list prints the supported types), or mpirun -n {}",
                        launch.process_count)
          : "use the mpirun of the MPI with which aliquot was built";
  throw UnavailableError(fmt::format("{}, but MPI_COMM_WORLD has only {}, so each process would train alone: {}",
                                     launch.text(), rank_count, advice));
}

// Returns the number of cores for this rank. If k ranks of the node may run on a core, each of them counts 1/k of that
// core.
double share_of_cores(Bootstrap& node) {
  const std::vector<bool> own = allowed_cores();
  std::vector<int> rank_counts(own.size(), 0);
  for (const std::string& mask : node.all_gather(std::string(own.begin(), own.end()))) {
    for (std::size_t core = 0; core < std::min(mask.size(), own.size()); ++core) rank_counts[core] += mask[core];
  }
  double share = 0;
  for (std::size_t core = 0; core < own.size(); ++core) {
    if (own[core]) share += 1.0 / rank_counts[core];
  }
  return share + 1e-6;  // prevents sums such as 1/3 + 1/3 + 1/3 from being rounded below an integer
}

/// Returns a world with one GPU per rank. Collectives use NCCL. MPI is used only for set-up.
World make_gpu_world(const WorldOptions& options, std::unique_ptr<MpiBootstrap> world) {
  Topology topology = find_topology(*world);
  std::vector<int> ranks_on_node(static_cast<std::size_t>(topology.node_count()), 0);
  std::vector<int> places;
  for (const int node : topology.node_of_rank) places.push_back(ranks_on_node[node]++);
  auto device = make_cuda_device(gpu_ordinal_for(places[world->rank()]));
  const auto gpus = world->all_gather(std::to_string(gpu_ordinal_for(places[world->rank()])));
  for (int r = 0; r < world->rank_count(); ++r) topology.gpu_of_rank[r] = std::stoi(gpus[r]);
  NcclSetup setup{.bootstrap = std::move(world),
                  .topology = std::move(topology),
                  .make_node_memory = make_process_node_memory,
                  .options = {.timeout_seconds = options.timeout_seconds}};
  auto communicator = make_nccl_communicator(*device, std::move(setup));
  return World(std::move(device), std::move(communicator));
}

World make_unrecorded_world(const WorldOptions& options, const LauncherInfo& launch,
                            std::unique_ptr<MpiBootstrap> world) {
  refuse_separate_worlds(launch, world->rank_count());
  if (agree_on_gpus(*world, [&] { return use_gpus(options); })) return make_gpu_world(options, std::move(world));
  const double share = share_of_cores(*world->split_by_node());
  if (share < 1) SharedCounter::set_spin_nanoseconds(0);
  auto device = make_rank_device(options, world->rank(), static_cast<int>(share));
  Topology topology = find_topology(*world);
  auto communicator = make_mpi_communicator(*device, std::move(world), std::move(topology));
  return World(std::move(device), std::move(communicator));
}

}  // namespace

World make_mpi_world(const WorldOptions& options, const LauncherInfo& launch) {
  auto bootstrap = [&] {
    const MpiDeadline deadline(std::max(options.timeout_seconds, kLeastStartSeconds), "start MPI");
    start_mpi(options.timeout_seconds);
    return std::make_unique<MpiBootstrap>(MPI_COMM_WORLD, options.timeout_seconds);
  }();
  const int rank = bootstrap->rank();
  const auto channels = bootstrap->channels();  // for an abort after `bootstrap` has been moved from
  try {
    return finish_world_setup(make_unrecorded_world(options, launch, std::move(bootstrap)), options);
  } catch (...) {
    channels.front()->post(failure_text(rank));
    throw;
  }
}

}  // namespace aliquot
