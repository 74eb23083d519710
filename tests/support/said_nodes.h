#pragma once
// Ranks of one machine taken for ranks of several nodes.

#include <cstdlib>
#include <string>

namespace aliquot::test {

/// Every so many ranks are a node, for worlds that are made while it lives.
class SaidNodes {
 public:
  explicit SaidNodes(int ranks_per_node) {
    setenv("ALIQUOT_RANKS_PER_NODE", std::to_string(ranks_per_node).c_str(), 1);
  }
  ~SaidNodes() { unsetenv("ALIQUOT_RANKS_PER_NODE"); }
  SaidNodes(const SaidNodes&) = delete;
  SaidNodes& operator=(const SaidNodes&) = delete;
};

}  // namespace aliquot::test
