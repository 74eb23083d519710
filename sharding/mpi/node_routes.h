#pragma once
// Routes of messages between nodes.

#include <vector>

#include "sharding/topology.h"

namespace aliquot {

/// The routes of one rank. A rank s sends data for another node to one rank of that node, its proxy, and the node's
/// ranks copy it from the proxy. Each byte is thus sent once. In a reduction the proxy adds its node's contributions
/// for s and sends the sum to s. Ranks with different indices on their node have different proxies, if the node has
/// enough ranks. Nodes may differ in size.
struct NodeRoutes {
  NodeRoutes(const Topology& topology, int rank);

  /// The rank of `node` that serves `rank`. On its own node, a rank is its own proxy.
  int proxy(int rank, int node) const;
  int node_count() const { return static_cast<int>(nodes.size()); }

  int rank;
  int node;                             // node of `rank`
  std::vector<std::vector<int>> nodes;  // the ranks of each node
  std::vector<int> node_of_rank;
  std::vector<int> index_on_node;   // of each rank
  std::vector<int> members;         // ranks of this node
  std::vector<int> remote_ranks;    // ranks of other nodes
  std::vector<int> served_ranks;    // remote ranks whose proxy on this node is `rank`
  std::vector<int> proxies;         // proxy of `rank` on each other node, in the order of nodes
  bool nodes_reduce_first = false;  // Topology::nodes_add_first()
};

}  // namespace aliquot
