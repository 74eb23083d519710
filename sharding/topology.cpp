#include "sharding/topology.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <fmt/format.h>
#include <set>
#include <string_view>

#include "kernels/system/error.h"

namespace aliquot {

Topology Topology::one_host(int rank_count) {
  return {.node_of_rank = std::vector<int>(rank_count, 0),
          .gpu_of_rank = std::vector<int>(rank_count, -1),
          .numa_of_rank = std::vector<int>(rank_count, -1)};
}

int Topology::node_count() const {
  return node_of_rank.empty() ? 0 : *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1;
}

bool Topology::shares_one_gpu() const {
  return one_node() && has_gpus() && !over_nccl &&
         std::ranges::all_of(gpu_of_rank, [this](int gpu) { return gpu == gpu_of_rank.front(); });
}

std::vector<int> Topology::ranks_of_node(int node) const {
  std::vector<int> ranks;
  for (int r = 0; r < rank_count(); ++r) {
    if (node_of_rank[r] == node) ranks.push_back(r);
  }
  return ranks;
}

bool Topology::nodes_are_aligned() const {
  if (one_node()) return true;
  const std::size_t block = ranks_of_node(0).size();
  if (!std::has_single_bit(block)) return false;
  for (int r = 0; r < rank_count(); ++r) {
    if (node_of_rank[r] != r / static_cast<int>(block)) return false;
  }
  return true;
}

std::string Topology::describe() const {
  const int nodes = node_count();
  if (nodes <= 1) return fmt::format("{} rank{} on one node", rank_count(), rank_count() == 1 ? "" : "s");
  std::set<std::size_t> sizes;
  for (int node = 0; node < nodes; ++node) sizes.insert(ranks_of_node(node).size());
  if (sizes.size() == 1) return fmt::format("{} ranks on {} nodes ({} each)", rank_count(), nodes, *sizes.begin());
  return fmt::format("{} ranks on {} nodes ({} to {} each)", rank_count(), nodes, *sizes.begin(), *sizes.rbegin());
}

int ranks_per_node_from_environment() {
  const char* variable = std::getenv("ALIQUOT_RANKS_PER_NODE");
  if (variable == nullptr) return 0;
  const std::string_view text = variable;
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1)
    throw UsageError(fmt::format("invalid ALIQUOT_RANKS_PER_NODE '{}': expected a number of ranks, 1 or more", text));
  return ranks;
}

}  // namespace aliquot
