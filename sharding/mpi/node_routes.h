#pragma once
// The routes of messages between nodes. On each other node, a rank has a proxy, which receives the rank's messages.

#include <vector>

#include "sharding/topology.h"

namespace aliquot {

/// The routes of one rank's messages. Every rank has one proxy on each other node. The rank sends data for that node
/// only to the proxy, and the other ranks of the node copy the data from the proxy. Each byte is therefore sent once
/// per node. In a reduction, the proxy adds the contributions of its node for the rank and sends the sum to the rank.
/// Ranks with different indices on their node have different proxies if the other node has enough ranks. Nodes may have
/// different numbers of ranks.
struct NodeRoutes {
  NodeRoutes(const Topology& topology, int rank);

  /// Returns the proxy of `rank` on `node`. On its own node, a rank is its own proxy.
  int proxy(int rank, int node) const;
  int node_count() const { return static_cast<int>(nodes.size()); }

  int rank;
  int node;                             // node of `rank`
  std::vector<std::vector<int>> nodes;  // the ranks of each node
  std::vector<int> node_of_rank;
  std::vector<int> index_on_node;   // index of each rank among the ranks of its node
  std::vector<int> members;         // ranks of this node
  std::vector<int> remote_ranks;    // ranks of other nodes
  std::vector<int> served_ranks;    // remote ranks whose proxy on this node is `rank`
  std::vector<int> proxies;         // proxy of `rank` on each other node, in the order of nodes
  bool nodes_reduce_first = false;  // Topology::nodes_add_first()
};

}  // namespace aliquot
