#include "engine/plan/mesh.h"

#include <fmt/format.h>
#include <utility>

namespace aliquot {
namespace {

/// For each coordinate of the mesh, whether it differs between the ranks of a group.
struct Varies {
  bool pipeline, replica, shard, tensor;
};

constexpr Varies varies(GroupId group) {
  const bool world = group == GroupId::kWorld, stage = world || group == GroupId::kStage;
  return {.pipeline = world || group == GroupId::kPipeline,
          .replica = stage || group == GroupId::kReplica,
          .shard = stage || group == GroupId::kShard,
          .tensor = stage || group == GroupId::kTensor};
}

}  // namespace

std::string_view name(GroupId group) {
  static constexpr std::array<std::string_view, kGroupCount> kNames = {
      "rank", "shard", "replica", "tensor", "pipeline", "stage", "world", "previous stage", "next stage"};
  return kNames[static_cast<std::size_t>(group)];
}

int Mesh::size(GroupId group) const {
  if (is_stage_pair(group)) return pipeline > 1 ? 2 : 1;
  const Varies in = varies(group);
  return (in.pipeline ? pipeline : 1) * (in.replica ? replica : 1) * (in.shard ? shard : 1) * (in.tensor ? tensor : 1);
}

MeshCoordinates Mesh::coordinates(int rank) const {
  MeshCoordinates at;
  at.tensor = rank % tensor;
  rank /= tensor;
  at.shard = rank % shard;
  rank /= shard;
  at.replica = rank % replica;
  at.pipeline = rank / replica;
  return at;
}

int Mesh::rank(const MeshCoordinates& at) const {
  return ((at.pipeline * replica + at.replica) * shard + at.shard) * tensor + at.tensor;
}

std::vector<int> Mesh::members(GroupId group, int rank) const {
  if (is_stage_pair(group)) {
    const int each = rank_count() / pipeline, first = group == GroupId::kNextStage ? rank : rank - each;
    const bool wraps = first < 0 || first + each >= rank_count();
    if (wraps && !(ring && pipeline > 1)) return {rank};
    return {(first + rank_count()) % rank_count(), (first + each) % rank_count()};
  }
  const Varies in = varies(group);
  const MeshCoordinates own = coordinates(rank);
  // The range of a coordinate.
  const auto range = [](bool varies_in_group, int own_coordinate, int count) {
    return varies_in_group ? std::pair(0, count) : std::pair(own_coordinate, own_coordinate + 1);
  };
  const auto [pipeline_begin, pipeline_end] = range(in.pipeline, own.pipeline, pipeline);
  const auto [replica_begin, replica_end] = range(in.replica, own.replica, replica);
  const auto [shard_begin, shard_end] = range(in.shard, own.shard, shard);
  const auto [tensor_begin, tensor_end] = range(in.tensor, own.tensor, tensor);
  std::vector<int> members;
  for (MeshCoordinates at{.pipeline = pipeline_begin}; at.pipeline < pipeline_end; ++at.pipeline) {
    for (at.replica = replica_begin; at.replica < replica_end; ++at.replica) {
      for (at.shard = shard_begin; at.shard < shard_end; ++at.shard) {
        for (at.tensor = tensor_begin; at.tensor < tensor_end; ++at.tensor) members.push_back(this->rank(at));
      }
    }
  }
  return members;
}

namespace {

std::string kind_text(const Mesh& mesh, GroupId group, int rank) {
  switch (group) {
    case GroupId::kRank: return "rank";
    case GroupId::kShard: return "shard group";
    case GroupId::kReplica: return "replicate group";
    case GroupId::kTensor: return "tensor group";
    case GroupId::kPipeline: return "pipeline group";
    case GroupId::kStage: return "group";
    case GroupId::kWorld: return "world";
    case GroupId::kPreviousStage:
    case GroupId::kNextStage: break;
  }
  const std::vector<int> members = mesh.members(group, rank);
  return fmt::format("pair of pipeline stages {} and {}", mesh.coordinates(members.front()).pipeline,
                     mesh.coordinates(members.back()).pipeline);
}

}  // namespace

std::string describe(const Mesh& mesh, GroupId group, int rank) {
  const MeshCoordinates at = mesh.coordinates(rank);
  const Varies in = varies(group);
  std::string text = kind_text(mesh, group, rank), dimensions;
  const auto add = [&](bool varies_in_group, int count, std::string_view dimension, int coordinate) {
    if (varies_in_group || count == 1) return;
    dimensions += fmt::format("{} {} {}", dimensions.empty() ? " of" : ",", dimension, coordinate);
  };
  add(in.pipeline || is_stage_pair(group), mesh.pipeline, "pipeline stage", at.pipeline);
  add(in.replica, mesh.replica, "replica", at.replica);
  add(in.shard, mesh.shard, "shard", at.shard);
  add(in.tensor, mesh.tensor, "tensor", at.tensor);
  return text + dimensions;
}

}  // namespace aliquot
