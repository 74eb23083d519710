#include "sharding/mpi/node_routes.h"

#include <algorithm>

namespace aliquot {

NodeRoutes::NodeRoutes(const Topology& topology, int own_rank)
    : rank(own_rank), node(topology.node_of_rank[own_rank]), node_of_rank(topology.node_of_rank) {
  nodes.resize(topology.node_count());
  for (int r = 0; r < topology.rank_count(); ++r) {
    auto& ranks = nodes[node_of_rank[r]];
    index_on_node.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(r);
  }
  members = nodes[node];
  for (int r = 0; r < topology.rank_count(); ++r) {
    if (node_of_rank[r] == node) continue;
    remote_ranks.push_back(r);
    if (proxy(r, node) == rank) served_ranks.push_back(r);
  }
  for (int n = 0; n < node_count(); ++n) {
    if (n != node) proxies.push_back(proxy(rank, n));
  }
  nodes_reduce_first = topology.nodes_add_first();
}

int NodeRoutes::proxy(int of_rank, int on_node) const {
  if (node_of_rank[of_rank] == on_node) return of_rank;
  const auto& ranks = nodes[on_node];
  return ranks[index_on_node[of_rank] % static_cast<int>(ranks.size())];
}

}  // namespace aliquot
