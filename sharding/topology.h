#pragma once
// The nodes, NUMA nodes and GPUs on which the ranks of a group run.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "sharding/nccl/nccl_options.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Describes where the ranks of one group run. The planner and the communicators depend on it. Each vector has one
/// element per rank.
struct Topology {
  std::vector<int> node_of_rank;    // nodes are numbered from 0, by their lowest rank
  std::vector<int> gpu_of_rank;     // GPU index on the rank's node; -1: the rank computes on the host
  std::vector<int> numa_of_rank{};  // NUMA node of the rank's cores; -1: several NUMA nodes, or unknown
  bool over_nccl = false;           // the ranks have GPUs, and their collectives use NCCL
  int64_t nccl_staging_bytes = NcclOptions().staging_bytes;

  /// Returns the topology of `rank_count` ranks on one host without GPUs. The NUMA nodes are unknown.
  static Topology one_host(int rank_count);

  int rank_count() const { return static_cast<int>(node_of_rank.size()); }
  int node_count() const;
  bool one_node() const { return node_count() <= 1; }
  bool has_gpus() const {
    return std::ranges::any_of(gpu_of_rank, [](int gpu) { return gpu >= 0; });
  }
  /// Whether all ranks use the same GPU, and can read one another's memory in place.
  bool shares_one_gpu() const;
  std::vector<int> ranks_of_node(int node) const;
  /// Returns whether every node has the same number of consecutive ranks, a power of two (the last node may have
  /// fewer). If so, the ranks of each node form a subtree of the summation tree over all ranks. Adding the data of each
  /// node first then gives the same bits as adding the data of all ranks.
  bool nodes_are_aligned() const;
  /// Whether the ranks of a node add their data before they send it to other nodes, which saves traffic.
  bool nodes_add_first() const { return nodes_are_aligned() && ranks_of_node(0).size() > 1; }
  /// Returns a text such as "4 ranks on 2 nodes (2 each)".
  std::string describe() const;

  friend bool operator==(const Topology&, const Topology&) = default;
};

/// Returns the value of the environment variable ALIQUOT_RANKS_PER_NODE, or 0 if it is not set. The variable divides
/// the ranks into nodes of that many ranks, regardless of the machines on which they run. Throws UsageError if the
/// value is not a positive integer.
int ranks_per_node_from_environment();

}  // namespace aliquot
#pragma GCC visibility pop
