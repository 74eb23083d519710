#include "sharding/node_plan.h"

#include <algorithm>

namespace aliquot {

NodePlan::NodePlan(const Topology& topology, int own_rank)
    : rank(own_rank), node(topology.node_of_rank[own_rank]), node_of_rank(topology.node_of_rank) {
  nodes.resize(topology.node_count());
  for (int r = 0; r < topology.rank_count(); ++r) {
    auto& ranks = nodes[node_of_rank[r]];
    place_of_rank.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(r);
  }
  members = nodes[node];
  for (int r = 0; r < topology.rank_count(); ++r) {
    if (node_of_rank[r] == node) continue;
    remote.push_back(r);
    if (proxy(r, node) == rank) served.push_back(r);
  }
  std::vector<int> served_by(node_of_rank.size());
  for (int r = 0; r < topology.rank_count(); ++r) {
    for (int n = 0; n < node_count(); ++n) {
      if (n != node_of_rank[r]) most_served = std::max(most_served, ++served_by[proxy(r, n)]);
      if (n != node && r == rank) proxies.push_back(proxy(r, n));
    }
  }
  nodes_add = topology.nodes_are_aligned() && nodes[0].size() > 1;
}

int NodePlan::proxy(int of_rank, int on_node) const {
  if (node_of_rank[of_rank] == on_node) return of_rank;
  const auto& ranks = nodes[on_node];
  return ranks[place_of_rank[of_rank] % static_cast<int>(ranks.size())];
}

}  // namespace aliquot
