#pragma once
// Ranks of one machine taken for ranks of several nodes.

#include <cstdlib>
#include <string>

namespace aliquot::test {

/// Every so many ranks are a node, for worlds that are made while it lives.
class ScopedRanksPerNode {
 public:
  explicit ScopedRanksPerNode(int ranks_per_node) {
    setenv("ALIQUOT_RANKS_PER_NODE", std::to_string(ranks_per_node).c_str(), 1);
  }
  ~ScopedRanksPerNode() { unsetenv("ALIQUOT_RANKS_PER_NODE"); }
  ScopedRanksPerNode(const ScopedRanksPerNode&) = delete;
  ScopedRanksPerNode& operator=(const ScopedRanksPerNode&) = delete;
};

}  // namespace aliquot::test
