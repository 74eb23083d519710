#pragma once
// Routes of messages between nodes.

#include <vector>

#include "sharding/topology.h"

namespace aliquot {

/// The routes of messages of one rank. A rank s has one proxy on every other node. It sends data for that node to the
/// proxy only, and the other ranks of the node copy the data from there, so each byte is sent once per node. In a
/// reduction, the proxy adds the contributions of its node for s and sends the sum to s. Ranks with different indices
/// on their node have different proxies, if the other node has enough ranks. Nodes may differ in size.
struct NodeRoutes {
  NodeRoutes(const Topology& topology, int rank);

  /// The rank of `node` that serves `rank`. On its own node, a rank is its own proxy.
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
