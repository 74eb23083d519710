#pragma once
// Which ranks share a node, a part of its memory, or a GPU.

#include <algorithm>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// Where the ranks of one group run, as a value: the planner takes it, the communicators choose their paths by it.
/// node_of_rank[r] numbers nodes from 0 in order of their first rank.
struct Topology {
  std::vector<int> node_of_rank;
  std::vector<int> gpu_of_rank;     // the GPU's number on its node, or -1: computes on the host
  std::vector<int> numa_of_rank{};  // the NUMA node, on its node, of all its cores, or -1: several, or not known

  /// `rank_count` ranks on one host, none with a GPU, nothing known of its memory.
  static Topology one_host(int rank_count);

  int rank_count() const { return static_cast<int>(node_of_rank.size()); }
  int node_count() const;
  bool one_node() const { return node_count() <= 1; }
  bool has_gpus() const {
    return std::ranges::any_of(gpu_of_rank, [](int gpu) { return gpu >= 0; });
  }
  std::vector<int> ranks_of_node(int node) const;
  /// True if every node holds the same power of two of contiguous ranks (the last may hold fewer): a node is then one
  /// subtree of the tree over ranks, and may add its own ranks first without changing a bit.
  bool nodes_are_aligned() const;
  /// Whether a node's ranks add their own parts before anything crosses, which saves traffic where nodes hold several.
  bool nodes_add_first() const { return nodes_are_aligned() && ranks_of_node(0).size() > 1; }
  /// "4 ranks on 2 nodes (2 each)".
  std::string describe() const;

  friend bool operator==(const Topology&, const Topology&) = default;
};

/// What the environment variable ALIQUOT_RANKS_PER_NODE says: every so many ranks are taken for a node, wherever they run; 0 if
/// it is not set. Throws UsageError for what is no number from 1.
int said_ranks_per_node();

}  // namespace aliquot
#pragma GCC visibility pop
