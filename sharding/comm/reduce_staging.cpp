#include "sharding/comm/reduce_staging.h"

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/elementwise/kernels.h"

namespace aliquot {
namespace {

/// Maps each number of ranks to the number of nodes with that many ranks.
std::map<int64_t, int64_t> nodes_by_size(const Topology& topology) {
  std::vector<int64_t> sizes(static_cast<std::size_t>(topology.node_count()), 0);
  for (const int node : topology.node_of_rank) ++sizes[static_cast<std::size_t>(node)];
  std::map<int64_t, int64_t> nodes;
  for (const int64_t size : sizes) ++nodes[size];
  return nodes;
}

/// Returns the largest number of ranks of other nodes for which one rank is the proxy. The first rank of a node serves
/// the most ranks: see NodeRoutes::proxy().
int64_t max_served_ranks(const std::map<int64_t, int64_t>& nodes) {
  int64_t most = 0;
  for (const auto& [own, own_count] : nodes) {
    int64_t served = 0;
    for (const auto& [size, count] : nodes) served += (count - (size == own ? 1 : 0)) * ((size + own - 1) / own);
    most = std::max(most, served);
  }
  return most;
}

/// Each rank receives a piece from each rank. If there are several groups of sources, each group has a partial sum.
StagingPlaces places_over_nccl(int rank_count, int64_t max_bytes) {
  if (rank_count == 1) return {};
  const int64_t groups = (rank_count + ReduceStaging::kMaxNcclSources - 1) / ReduceStaging::kMaxNcclSources;
  return {.count = rank_count + (groups > 1 ? groups : 0), .max_nccl_bytes = std::max(max_bytes, int64_t{1})};
}

}  // namespace

bool sum_needs_staging(const Topology& topology, bool in_tree_order, DType from, DType to) {
  if (topology.over_nccl)
    return topology.rank_count() > 1 && (in_tree_order || from != DType::kFloat32 || to != DType::kFloat32);
  return !topology.one_node() && !topology.has_gpus();
}

/// Between host nodes: if each node adds its data first (Topology::nodes_add_first(), unless `alone`), a rank is the
/// proxy for some ranks of other nodes. A slot then holds one partial sum to send to each of these ranks, and one
/// partial sum from each node. Otherwise a slot holds one piece from each rank of other nodes.
StagingPlaces reduce_staging_places(const Topology& topology, bool alone) {
  if (topology.over_nccl) return places_over_nccl(topology.rank_count(), topology.nccl_staging_bytes);
  if (topology.one_node() || topology.has_gpus()) return {};
  const std::map<int64_t, int64_t> nodes = nodes_by_size(topology);
  if (topology.nodes_add_first() && !alone) return {max_served_ranks(nodes) + topology.node_count()};
  return {topology.rank_count() - nodes.begin()->first};
}

int64_t ReduceStaging::slot_bytes() const { return place_count * piece_elements * element_bytes(DType::kFloat32); }

ReduceStaging reduce_staging(StagingPlaces places, int64_t part_count) {
  if (places.count == 0 || part_count == 0) return {};
  const int64_t padded_count = (part_count + kBlockElements - 1) / kBlockElements * kBlockElements;
  const bool over_nccl = places.max_nccl_bytes > 0;
  const int64_t slots = over_nccl ? 1 : 2;
  const int64_t max_bytes = over_nccl ? places.max_nccl_bytes : ReduceStaging::kMaxBytes;
  const int64_t elements = max_bytes / (slots * places.count * element_bytes(DType::kFloat32));
  const int64_t fitting = std::max(elements / kBlockElements, int64_t{1}) * kBlockElements;
  if (padded_count <= fitting) return {.piece_elements = padded_count, .place_count = places.count, .slot_count = 1};
  return {.piece_elements = fitting, .place_count = places.count, .slot_count = slots};
}

Buffer allocate_reduce_staging(Device& device, const Topology& topology, int64_t part_count, bool alone) {
  const int64_t size_bytes = reduce_staging(topology, part_count, alone).size_bytes();
  return size_bytes == 0 ? Buffer() : device.allocate(size_bytes, Category::kCommunication, "reduce-scatter staging");
}

}  // namespace aliquot
