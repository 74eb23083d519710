// Tests the coordinates of ranks in a mesh, and the members of its groups.
#include "engine/plan/mesh.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <set>

namespace aliquot {
namespace {

constexpr GroupId kGroups[] = {GroupId::kRank,     GroupId::kShard, GroupId::kReplica, GroupId::kTensor,
                               GroupId::kPipeline, GroupId::kStage, GroupId::kWorld};

std::vector<Mesh> meshes() {
  std::vector<Mesh> all;
  for (const int p : {1, 2, 3}) {
    for (const int r : {1, 2}) {
      for (const int s : {1, 2, 5}) {
        for (const int t : {1, 3}) all.push_back({p, r, s, t});
      }
    }
  }
  return all;
}

TEST(Mesh, TensorVariesFastestAndPipelineSlowest) {
  const Mesh mesh{2, 3, 4, 5};
  EXPECT_EQ(mesh.rank_count(), 120);
  EXPECT_EQ(mesh.coordinates(0), (MeshCoordinates{0, 0, 0, 0}));
  EXPECT_EQ(mesh.coordinates(1), (MeshCoordinates{0, 0, 0, 1}));
  EXPECT_EQ(mesh.coordinates(5), (MeshCoordinates{0, 0, 1, 0}));
  EXPECT_EQ(mesh.coordinates(20), (MeshCoordinates{0, 1, 0, 0}));
  EXPECT_EQ(mesh.coordinates(60), (MeshCoordinates{1, 0, 0, 0}));
  EXPECT_EQ(mesh.coordinates(119), (MeshCoordinates{1, 2, 3, 4}));
}

TEST(Mesh, ListsTheMembersOfEveryGroup) {
  const Mesh mesh{2, 2, 2, 2};
  EXPECT_EQ(mesh.members(GroupId::kRank, 5), (std::vector{5}));
  EXPECT_EQ(mesh.members(GroupId::kTensor, 5), (std::vector{4, 5}));
  EXPECT_EQ(mesh.members(GroupId::kShard, 5), (std::vector{5, 7}));
  EXPECT_EQ(mesh.members(GroupId::kReplica, 5), (std::vector{1, 5}));
  EXPECT_EQ(mesh.members(GroupId::kPipeline, 5), (std::vector{5, 13}));
  EXPECT_EQ(mesh.members(GroupId::kStage, 5), (std::vector{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(mesh.members(GroupId::kWorld, 5).size(), 16u);
}

/// Without pipeline and tensor dimensions, a shard group has contiguous ranks, and a replicate group has the ranks that
/// hold the same shard.
TEST(Mesh, ShardGroupsAreContiguous) {
  const Mesh mesh{.replica = 2, .shard = 3};
  EXPECT_EQ(mesh.members(GroupId::kShard, 4), (std::vector{3, 4, 5}));
  EXPECT_EQ(mesh.members(GroupId::kReplica, 4), (std::vector{1, 4}));
}

TEST(Mesh, EachGroupPartitionsTheRanks) {
  for (const Mesh& mesh : meshes()) {
    for (const GroupId group : kGroups) {
      std::set<std::vector<int>> groups;
      for (int rank = 0; rank < mesh.rank_count(); ++rank) {
        const auto members = mesh.members(group, rank);
        EXPECT_EQ(static_cast<int>(members.size()), mesh.size(group)) << name(group);
        EXPECT_TRUE(std::ranges::count(members, rank) == 1) << name(group);
        EXPECT_EQ(mesh.rank(mesh.coordinates(rank)), rank);
        groups.insert(members);
      }
      EXPECT_EQ(static_cast<int>(groups.size()) * mesh.size(group), mesh.rank_count()) << name(group);
    }
  }
}

TEST(Mesh, CoversReportsWhetherAGroupContainsAnother) {
  for (const GroupId wide : kGroups) {
    for (const GroupId narrow : kGroups) {
      bool contains = true;
      for (const Mesh& mesh : meshes()) {
        for (int rank = 0; rank < mesh.rank_count(); ++rank) {
          const auto all = mesh.members(wide, rank), some = mesh.members(narrow, rank);
          contains = contains && std::ranges::includes(all, some);
        }
      }
      EXPECT_EQ(covers(wide, narrow), contains) << name(wide) << " " << name(narrow);
    }
  }
}

TEST(Mesh, PeerGroupsHaveConsecutiveIndices) {
  for (std::size_t i = 0; i < kPeerGroupCount; ++i) {
    EXPECT_EQ(peer_index(kPeerGroups[i]), i);
    EXPECT_TRUE(is_peer_group(kPeerGroups[i]));
  }
  EXPECT_FALSE(is_peer_group(GroupId::kRank));
  EXPECT_FALSE(is_peer_group(GroupId::kWorld));
}

TEST(Mesh, DescribesGroupsByTheDimensionsWithSeveralRanks) {
  const Mesh mesh{.pipeline = 2, .replica = 2, .shard = 2};
  EXPECT_EQ(describe(mesh, GroupId::kShard, 5), "shard group of pipeline stage 1, replica 0");
  EXPECT_EQ(describe(mesh, GroupId::kReplica, 5), "replicate group of pipeline stage 1, shard 1");
  EXPECT_EQ(describe(mesh, GroupId::kPipeline, 5), "pipeline group of replica 0, shard 1");
  EXPECT_EQ(describe(mesh, GroupId::kStage, 5), "group of pipeline stage 1");
  EXPECT_EQ(describe(mesh, GroupId::kWorld, 5), "world");
  EXPECT_EQ(describe(mesh, GroupId::kPreviousStage, 5), "pair of pipeline stages 0 and 1 of replica 0, shard 1");
  EXPECT_EQ(describe({.pipeline = 4}, GroupId::kNextStage, 1), "pair of pipeline stages 1 and 2");
  EXPECT_EQ(describe({.pipeline = 3, .ring = true}, GroupId::kNextStage, 2), "pair of pipeline stages 2 and 0");
  EXPECT_EQ(describe({.shard = 4}, GroupId::kShard, 1), "shard group");
}

/// All ranks of a collective describe its group in the same words.
TEST(Mesh, DescriptionsAreEqualOnAllRanksOfAGroup) {
  for (const Mesh& mesh : meshes()) {
    for (const GroupId group : kGroups) {
      for (int rank = 0; rank < mesh.rank_count(); ++rank) {
        for (const int member : mesh.members(group, rank))
          EXPECT_EQ(describe(mesh, group, member), describe(mesh, group, rank));
      }
    }
    for (int rank = 0; rank < mesh.rank_count(); ++rank) {
      const std::vector<int> pair = mesh.members(GroupId::kNextStage, rank);
      if (pair.size() < 2) continue;
      EXPECT_EQ(describe(mesh, GroupId::kPreviousStage, pair[1]), describe(mesh, GroupId::kNextStage, pair[0]));
    }
  }
}

}  // namespace
}  // namespace aliquot
