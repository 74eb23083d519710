#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/system/shared_counter.h"
#include "sharding/cores.h"
#include "sharding/gpu_ranks.h"
#include "sharding/launcher.h"
#include "sharding/mpi/communicator_mpi.h"
#include "sharding/mpi/node_memory_mpi.h"
#include "sharding/mpi/thread_level_mpi.h"
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

/// Returns the number of cores for this rank, if the ranks of its world on this node may run on the cores `group`.
double own_share_of_cores(const std::vector<bool>& own, const std::vector<std::vector<bool>>& group) {
  return share_of_cores(own, group, cpuset_core_count(), launched_count_on_node());
}

double own_share_of_cores(Bootstrap& node) {
  const std::vector<bool> own = allowed_cores();
  std::vector<std::vector<bool>> group;
  for (const std::string& cores : node.all_gather(std::string(own.begin(), own.end()))) {
    group.emplace_back(cores.begin(), cores.end());
  }
  return own_share_of_cores(own, group);
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
                  .options = options.nccl,
                  .timeout_seconds = options.timeout_seconds};
  auto communicator = make_nccl_communicator(*device, std::move(setup));
  return World(std::move(device), std::move(communicator));
}

/// Returns a world of one rank of an MPI program. It does not use MPI, so every thread level suffices. It leaves cores
/// to the other ranks of the program.
World make_single_mpi_rank_world(WorldOptions options) {
  const std::vector<bool> own = allowed_cores();
  if (options.threads_per_rank <= 0)
    options.threads_per_rank = std::max(1, static_cast<int>(own_share_of_cores(own, {own})));
  return make_single_rank_world(options);
}

World make_unrecorded_world(const WorldOptions& options, std::unique_ptr<MpiBootstrap> world) {
  if (agree_on_gpus(*world, [&] { return use_gpus(options); })) return make_gpu_world(options, std::move(world));
  const double share = own_share_of_cores(*world->split_by_node());
  if (share < 1) SharedCounter::set_spin_nanoseconds(0);
  auto device = make_rank_device(options, world->rank(), static_cast<int>(share));
  Topology topology = find_topology(*world);
  auto communicator = make_mpi_communicator(*device, std::move(world), std::move(topology));
  return World(std::move(device), std::move(communicator));
}

/// Creates the world on the ranks of the bootstrap, after `check`. If this rank fails, the other ranks are told.
World make_world_of(const WorldOptions& options, std::unique_ptr<MpiBootstrap> bootstrap,
                    const std::function<void(const MpiBootstrap&)>& check) {
  const int rank = bootstrap->rank();
  const auto channels = bootstrap->channels();  // for an abort after `bootstrap` has been moved from
  try {
    check(*bootstrap);
    return finish_world_setup(make_unrecorded_world(options, std::move(bootstrap)), options, RanksAre::kProcesses);
  } catch (...) {
    channels.front()->post(failure_reason(rank));
    throw;
  }
}

/// Calls `connect`, which blocks until all ranks call it, with a deadline.
std::unique_ptr<MpiBootstrap> make_bootstrap(const WorldOptions& options, const char* purpose,
                                             const std::function<MPI_Comm()>& connect) {
  const MpiDeadline deadline(std::max(options.timeout_seconds, kLeastStartSeconds), purpose);
  return std::make_unique<MpiBootstrap>(connect(), options.timeout_seconds);
}

/// Returns the communicator of the program for a Fortran handle. Throws UsageError if a world cannot be made from it.
MPI_Comm require_communicator(int handle) {
  require_mpi_running("World::from_mpi()");
  const MPI_Comm comm = MPI_Comm_f2c(handle);
  if (comm == MPI_COMM_NULL || comm == MPI_Comm{})
    throw UsageError(fmt::format(
        "World::from_mpi(): the communicator with the Fortran handle {} is MPI_COMM_NULL or does not exist: call it "
        "only on ranks of the communicator, in a program that uses the MPI with which Aliquot was built",
        handle));
  int connects_groups = 0;
  check_mpi(MPI_Comm_test_inter(comm, &connects_groups), "MPI_Comm_test_inter");
  if (connects_groups != 0)
    throw UsageError(
        "World::from_mpi(): the communicator connects two groups (an intercommunicator): expected one of one group, "
        "for example from MPI_Comm_split()");
  return comm;
}

}  // namespace

World make_mpi_world(const WorldOptions& options, const LauncherInfo& launch) {
  auto bootstrap = make_bootstrap(options, "start MPI", [&] {
    start_mpi(options.timeout_seconds);
    return MPI_COMM_WORLD;
  });
  return make_world_of(options, std::move(bootstrap),
                       [&](const MpiBootstrap& world) { refuse_separate_worlds(launch, world.rank_count()); });
}

World World::from_mpi_handle(int communicator, const WorldOptions& given) {
  const WorldOptions options = validated_options(given);
  if (options.kind == WorldChoice::kThreads)
    throw UsageError(
        "World::from_mpi() connects processes, but WorldOptions::kind is threads: set it to auto, mpi or nccl");
  const MPI_Comm comm = require_communicator(communicator);
  int rank_count = 0;
  check_mpi(MPI_Comm_size(comm, &rank_count), "MPI_Comm_size");
  if (rank_count == 1) return make_single_mpi_rank_world(options);
  auto bootstrap = make_bootstrap(options, "create a world from an MPI communicator", [&] {
    require_thread_multiple_on_all(comm);
    return comm;
  });
  return make_world_of(options, std::move(bootstrap), [](const MpiBootstrap&) {});
}

}  // namespace aliquot
