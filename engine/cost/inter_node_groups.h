#pragma once
// The bytes that collectives send between nodes.

#include <cstdint>
#include <vector>

#include "engine/plan/mesh.h"
#include "kernels/formats/dtype.h"
#include "sharding/topology.h"

namespace aliquot {

/// The placement of one group's ranks on nodes, and the bytes that its ranks on the first node send to other nodes.
/// Assumes the algorithms of the communicator for several nodes.
struct GroupPlacement {
  int rank_count = 0, ranks_on_node = 0, other_nodes = 0;
  bool sums_on_node = false;  // a node adds the parts of its ranks, and sends only the sums

  /// Returns the bytes that the first node sends in an all-gather. It sends the part of each of its ranks once to each
  /// other node.
  int64_t gathered_bytes(int64_t part_bytes) const { return part_bytes * ranks_on_node * other_nodes; }
  /// Returns the bytes that the first node sends in a reduce-scatter. With `sums_on_node`, it sends one sum in fp32 for
  /// each rank on another node. Otherwise each of its ranks sends one part, of type `sent`, for each rank on another
  /// node.
  int64_t reduced_bytes(int64_t part_count, DType sent) const {
    const int64_t parts = rank_count - ranks_on_node;
    return sums_on_node ? parts * part_count * element_bytes(DType::kFloat32)
                        : parts * ranks_on_node * part_count * element_bytes(sent);
  }
};

/// The placements of all groups with ranks on the first node. The cost model predicts only the traffic of the first
/// node, so it needs no other groups.
struct InterNodeGroups {
  /// `stage`: the ranks of one pipeline stage of `mesh`.
  InterNodeGroups(const Topology& stage, Mesh mesh);

  std::vector<GroupPlacement> replicas;  // one for each shard group
  std::vector<GroupPlacement> peers;     // one for each replicate group; empty without replicas
  std::vector<GroupPlacement> tensors;   // one for each tensor group; empty without tensor groups
  bool tensor_groups_cross = false;      // whether a tensor group of the stage has ranks on several nodes
};

}  // namespace aliquot
