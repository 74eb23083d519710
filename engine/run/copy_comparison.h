#pragma once
// Comparison of data that several ranks hold.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/run/memory/host_view.h"
#include "engine/run/memory/offload_stores.h"
#include "engine/run/memory/step_memory.h"
#include "engine/run/mesh_groups.h"

namespace aliquot {

/// Finds ranks whose copies have different bits. Compares full parameters below ZeRO stage 3, masters and optimizer
/// state at ZeRO stage 0, and all shards if there are replicas. At ZeRO stage 3 without replicas there are no copies.
/// Used between steps, while all streams are idle, from the rank's own thread. Everything passed must outlive it.
class CopyComparison {
 public:
  CopyComparison(const Plan& plan, const MeshGroups& groups, const StepMemory& memory, const HostView& view)
      : plan_(plan), groups_(groups), memory_(memory), view_(view) {}

  /// Collective. Returns a description of the first difference, or an empty string if all copies are equal: unit, ranks
  /// with their nodes, and the first block that differs. The result is the same on every rank.
  std::string difference() const;

 private:
  std::vector<uint64_t> hashes(GroupId group) const;
  std::string compare(GroupId group, const std::vector<uint64_t>& own) const;
  /// A block of the data of one unit. After ranks have found a difference, they compare the hashes of its blocks.
  struct Block {
    int32_t flat = -1;
    int64_t index = 0;  // of the block in the flat buffer; of optimizer state, in the memory of its state
    uint64_t hash = 0;
  };
  std::vector<Block> blocks(GroupId group, std::size_t index) const;
  void add_blocks(std::vector<Block>& blocks, int32_t flat, Role role, const std::byte* at) const;
  bool is_compared(GroupId group, int32_t flat, Role role) const;
  std::string first_block_text(GroupId group, std::size_t index) const;
  std::string nodes_text(GroupId group) const;
  std::string difference_text(GroupId group, std::size_t index,
                              const std::map<uint64_t, std::vector<int>>& ranks_by_hash) const;
  uint64_t hash(uint64_t seed, const std::byte* at, int64_t size_bytes) const;
  uint64_t hash_of_parameters(uint64_t seed, int32_t flat, const std::byte* at) const;

  const Plan& plan_;
  const MeshGroups& groups_;
  const StepMemory& memory_;
  const HostView& view_;
};

}  // namespace aliquot
