#pragma once
// The mesh of ranks, and the groups of ranks that communicate.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// The ranks that take part in an operation, or that a wait or an access concerns. The comments describe each group as
/// one rank sees it.
enum class GroupId : uint8_t {
  kRank,      // this rank alone
  kShard,     // the ranks over which one copy of the model is partitioned
  kReplica,   // the replicate group: the ranks that hold the same shard, one of each replica
  kTensor,    // the ranks that split the tensors of one pipeline stage and one shard
  kPipeline,  // one rank of each pipeline stage, all with equal other coordinates
  kStage,     // all ranks of one pipeline stage
  kWorld,
  kPreviousStage,  // this rank, and the rank with equal other coordinates on the previous pipeline stage
  kNextStage,      // this rank, and the rank with equal other coordinates on the next pipeline stage
};
inline constexpr int kGroupCount = 9;

std::string_view name(GroupId group);

/// The groups whose operations can read memory of peers. Each extends along one dimension of the mesh.
inline constexpr std::array kPeerGroups{GroupId::kShard, GroupId::kReplica};
inline constexpr std::size_t kPeerGroupCount = kPeerGroups.size();
/// The index of `group` in kPeerGroups.
constexpr std::size_t peer_index(GroupId group) {
  return static_cast<std::size_t>(group) - static_cast<std::size_t>(GroupId::kShard);
}
constexpr bool is_peer_group(GroupId group) { return group != GroupId::kRank && peer_index(group) < kPeerGroupCount; }
/// The groups whose collectives access the arenas of several ranks. memory_index() is the index of a group in this
/// list.
inline constexpr std::array kMemoryGroups{GroupId::kShard, GroupId::kReplica, GroupId::kTensor};
constexpr std::size_t memory_index(GroupId group) {
  return static_cast<std::size_t>(group) - static_cast<std::size_t>(GroupId::kShard);
}
/// Whether `group` is a pair of ranks on neighboring pipeline stages.
constexpr bool is_stage_pair(GroupId group) { return group == GroupId::kPreviousStage || group == GroupId::kNextStage; }

/// Returns kShard if `peers` is true, otherwise kRank.
constexpr GroupId shard_group_if(bool peers) { return peers ? GroupId::kShard : GroupId::kRank; }

/// Whether a wait for all ranks of `wide` implies a wait for all ranks of `narrow`.
constexpr bool covers(GroupId wide, GroupId narrow) {
  return wide == narrow || narrow == GroupId::kRank || wide == GroupId::kWorld ||
         (wide == GroupId::kPipeline && is_stage_pair(narrow)) ||
         (wide == GroupId::kStage && (is_peer_group(narrow) || narrow == GroupId::kTensor));
}

struct MeshCoordinates {
  int pipeline = 0, replica = 0, shard = 0, tensor = 0;

  friend bool operator==(const MeshCoordinates&, const MeshCoordinates&) = default;
};

/// The numbers of ranks in each dimension, and the neighbors of pipeline stages. The tensor coordinate varies fastest
/// with the rank, because tensor groups need the fastest links. The shard, replica and pipeline coordinates follow in
/// this order.
struct Mesh {
  int pipeline = 1, replica = 1, shard = 1, tensor = 1;
  bool ring = false;  // the last pipeline stage is followed by the first

  int rank_count() const { return pipeline * replica * shard * tensor; }
  /// The number of ranks of a group. A pair of stages has two ranks, or one if the pipeline has one stage.
  int size(GroupId group) const;
  MeshCoordinates coordinates(int rank) const;
  int rank(const MeshCoordinates& at) const;
  /// The global ranks of the group that contains `rank`, ascending. For a pair of stages, the rank on the earlier stage
  /// comes first. Without `ring`, the first stage has no previous stage, and the last stage has no next stage. The pair
  /// is then the rank alone.
  std::vector<int> members(GroupId group, int rank) const;

  friend bool operator==(const Mesh&, const Mesh&) = default;
};

/// Describes the group that contains `rank`, for messages: "shard group of pipeline stage 1, replica 0". Names only the
/// dimensions of the mesh that have several ranks. Returns the same text on all ranks of the group.
std::string describe(const Mesh& mesh, GroupId group, int rank);

}  // namespace aliquot
#pragma GCC visibility pop
