#pragma once
// Who talks to whom between nodes.

#include <vector>

#include "sharding/topology.h"

namespace aliquot {

/// The routes of one rank. What rank s sends to another node goes to one rank there, its proxy, from where the node's
/// ranks copy it, so each byte crosses once; proxies are spread over a node's ranks by their place on the node. The
/// same pairs serve in reverse: the proxy adds its node's part of what s is to receive. A value; nodes may differ in size.
struct NodeRoutes {
  NodeRoutes(const Topology& topology, int rank);

  /// The rank of `node` that serves `rank`: itself on its own node.
  int proxy(int rank, int node) const;
  int node_count() const { return static_cast<int>(nodes.size()); }

  int rank;
  int node;                             // the rank's own
  std::vector<std::vector<int>> nodes;  // each node's ranks, in order
  std::vector<int> node_of_rank;
  std::vector<int> index_on_node;   // among its node's ranks
  std::vector<int> members;         // of the own node
  std::vector<int> remote_ranks;    // all ranks of other nodes
  std::vector<int> served_ranks;    // those of them whose proxy here is this rank
  std::vector<int> proxies;         // this rank's proxy on each other node, in the order of nodes
  bool nodes_reduce_first = false;  // a node's ranks may add on their own, and it saves traffic
};

}  // namespace aliquot
