#include "engine/run/mesh_groups.h"

#include <algorithm>
#include <fmt/format.h>

#include "kernels/system/error.h"
#include "sharding/flight/flight_recorder.h"

namespace aliquot {

void StagePair::transfer(Stream& lane, const Transfers& what, bool sends, Label label) {
  ranks_->transfer(lane, what, label);
  const uint64_t count = ++counts_[static_cast<std::size_t>(lane.lane())];
  ranks_->publish(lane, count);
  if (sends) ranks_->await(lane, lane.lane(), count, label);
}

MeshGroups::MeshGroups(World& world, const Mesh& mesh)
    : world_(world), mesh_(mesh), coordinates_(mesh.coordinates(world.rank())) {
  if (world.flight() != nullptr) {
    const auto& [pipeline, replica, shard, tensor] = coordinates_;
    world.flight()->set_mesh({.counts = {mesh.pipeline, mesh.replica, mesh.shard, mesh.tensor},
                              .coordinates = {pipeline, replica, shard, tensor}});
  }
  for (std::size_t i = 0; i < kSplitGroups.size(); ++i) {
    const GroupId group = kSplitGroups[i];
    if (mesh.size(group) == world.rank_count()) continue;
    const bool used = group == GroupId::kShard || mesh.size(group) > 1;
    if (!used) continue;
    const int first = mesh.members(group, world.rank()).front();
    groups_[i] = world.communicator().split(first, world.rank(), describe(mesh, group, world.rank()));
  }
  // A reduce waits for backward. A later gather must not wait for that reduce.
  if (mesh.shard > 1) at(GroupId::kShard).separate_lane(Lane::kGather);
  if (mesh.pipeline > 1) split_pairs();
}

/// A stage may have two neighbors, but one split gives each rank only one communicator. So the boundaries are split in
/// rounds.
void MeshGroups::split_pairs() {
  for (const std::optional<Verb> verb : pair_rounds()) {
    const GroupId group = verb ? info(*verb).group : GroupId::kRank;
    const int rank = world_.rank(), first = mesh_.members(group, rank).front();
    auto pair = world_.communicator().split(first, first == rank ? 0 : 1, describe(mesh_, group, rank));
    if (verb)
      pairs_[pair_index(*verb)] =
          std::make_unique<StagePair>(std::move(pair));  // otherwise this rank is alone in the round
  }
}

/// For each direction of transfers, pairs of pipeline stages make their calls in up to three rounds: first the
/// pairs whose earlier stage has an even number, then the pairs whose earlier stage has an odd number. In a ring, the
/// pair of the last and the first stage follows.
std::vector<std::optional<Verb>> MeshGroups::pair_rounds() const {
  const int last = mesh_.pipeline - 1, stage = coordinates_.pipeline;
  std::vector<std::optional<Verb>> rounds;
  const auto add = [&](Verb direction, bool precedes, bool follows) {
    const GroupId group = precedes ? GroupId::kNextStage : GroupId::kPreviousStage;
    const Verb verb = info(direction).group == group ? direction : counterpart(direction);
    rounds.push_back(precedes || follows ? std::optional(verb) : std::nullopt);
  };
  for (const Verb direction : kDirections) {
    for (const int odd : {0, 1}) add(direction, stage % 2 == odd && stage < last, stage % 2 != odd && stage > 0);
    if (mesh_.ring) add(direction, stage == last, stage == 0);
  }
  return rounds;
}

std::vector<Communicator*> MeshGroups::communicators() const {
  std::vector<Communicator*> all{&world_.communicator()};
  for (const auto& group : groups_) {
    if (group != nullptr) all.push_back(group.get());
  }
  if (mesh_.pipeline == 1) return all;
  for (const std::optional<Verb> verb : pair_rounds()) {
    if (verb) all.push_back(&pair(*verb).communicator());
  }
  return all;
}

Communicator& MeshGroups::at(GroupId group) const {
  const auto found = std::ranges::find(kSplitGroups, group);
  if (found == kSplitGroups.end()) return world_.communicator();
  const auto& split = groups_[static_cast<std::size_t>(found - kSplitGroups.begin())];
  if (!split && mesh_.size(group) != world_.rank_count())
    throw FaultError(fmt::format("the group {} has one rank, which needs no communicator", name(group)));
  return split ? *split : world_.communicator();
}

}  // namespace aliquot
