#pragma once
// Emulates several nodes on one machine.

#include <cstdlib>
#include <string>

namespace aliquot::test {

/// While an instance exists, new worlds treat every `ranks_per_node` consecutive ranks as one node.
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
