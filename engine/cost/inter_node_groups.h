#pragma once
// What of a collective leaves a node.

#include <cstdint>
#include <vector>

#include "kernels/formats/dtype.h"
#include "sharding/topology.h"

namespace aliquot {

/// How the ranks of one group lie, seen from the first node, and the bytes that it sends to the others, as the communicator of
/// ranks on several nodes moves them.
struct GroupPlacement {
  int rank_count = 0, ranks_on_node = 0, other_nodes = 0;
  bool sums_on_node = false;  // a node adds up its own ranks' parts before they leave

  /// Each of the node's parts goes to each other node once.
  int64_t gathered_bytes(int64_t part_bytes) const { return part_bytes * ranks_on_node * other_nodes; }
  /// To each rank elsewhere goes the node's sum of its part, in fp32, or each rank's own as it is sent.
  int64_t reduced_bytes(int64_t part_count, DType sent) const {
    const int64_t parts = rank_count - ranks_on_node;
    return sums_on_node ? parts * part_count * element_bytes(DType::kFloat32)
                        : parts * ranks_on_node * part_count * element_bytes(sent);
  }
};

/// The groups that have ranks on the first node.
struct InterNodeGroups {
  InterNodeGroups(const Topology& world, int replica_count);

  std::vector<GroupPlacement> replicas;  // contiguous ranks that share one whole model
  std::vector<GroupPlacement> peers;     // ranks that hold the same shard; none without replicas
};

}  // namespace aliquot
