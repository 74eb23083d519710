#include "sharding/mpi/communicator_mpi.h"

#include <algorithm>
#include <map>

#include "sharding/comm/direct_communicator.h"
#include "sharding/cores.h"
#include "sharding/mpi/node_communicator_mpi.h"
#include "sharding/mpi/node_memory_mpi.h"

namespace aliquot {

Topology find_topology(MpiBootstrap& world) {
  Topology topology = Topology::one_host(world.rank_count());
  const auto numa = world.all_gather(std::to_string(numa_node_of(allowed_cores())));
  std::transform(numa.begin(), numa.end(), topology.numa_of_rank.begin(),
                 [](const auto& text) { return std::stoi(text); });
  if (const int ranks = ranks_per_node_from_environment(); ranks > 0) {
    for (int r = 0; r < world.rank_count(); ++r) topology.node_of_rank[r] = r / ranks;
    return topology;
  }
  const std::string first = world.split_by_node()->all_gather(std::to_string(world.rank()))[0];
  std::map<std::string, int> numbers;
  const auto firsts = world.all_gather(first);
  for (int r = 0; r < world.rank_count(); ++r) {
    topology.node_of_rank[r] = numbers.try_emplace(firsts[r], static_cast<int>(numbers.size())).first->second;
  }
  return topology;
}

std::unique_ptr<Communicator> make_mpi_communicator(Device& device, std::unique_ptr<MpiBootstrap> world,
                                                    Topology topology, std::string_view group) {
  if (!topology.one_node())
    return std::make_unique<NodeCommunicator>(device, std::move(world), std::move(topology), group);
  DirectTransport transport = host_direct_transport(world->timeout_seconds());
  transport.name = "mpi";
  transport.group = group;
  transport.make_node_memory = make_process_node_memory;
  return make_direct_communicator(device, std::move(world), std::move(topology), transport);
}

}  // namespace aliquot
