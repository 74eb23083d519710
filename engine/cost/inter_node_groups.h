#pragma once
// The bytes that collectives send between nodes.

#include <cstdint>
#include <vector>

#include "kernels/formats/dtype.h"
#include "sharding/topology.h"

namespace aliquot {

/// The placement of one group's ranks on nodes, and the bytes that its ranks on the first node send to other nodes. The
/// bytes are those of the algorithms in the communicator for several nodes.
struct GroupPlacement {
  int rank_count = 0, ranks_on_node = 0, other_nodes = 0;
  bool sums_on_node = false;  // a node adds the parts of its ranks before it sends them

  /// The bytes of an all-gather: the node sends the part of each of its ranks once to each other node.
  int64_t gathered_bytes(int64_t part_bytes) const { return part_bytes * ranks_on_node * other_nodes; }
  /// The bytes of a reduce-scatter. For each rank on another node, the node sends one sum in fp32. Without
  /// `sums_on_node`, each rank of the node sends its own part to that rank.
  int64_t reduced_bytes(int64_t part_count, DType sent) const {
    const int64_t parts = rank_count - ranks_on_node;
    return sums_on_node ? parts * part_count * element_bytes(DType::kFloat32)
                        : parts * ranks_on_node * part_count * element_bytes(sent);
  }
};

/// For each group with ranks on the first node, how its ranks are distributed over nodes. The cost model predicts only
/// the traffic of the first node, so it needs no other groups.
struct InterNodeGroups {
  InterNodeGroups(const Topology& world, int replica_count);

  std::vector<GroupPlacement> replicas;  // shard groups
  std::vector<GroupPlacement> peers;     // replicate groups; empty without replicas
};

}  // namespace aliquot
