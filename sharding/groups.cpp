#include "sharding/groups.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include "kernels/system/error.h"

namespace aliquot {

std::vector<std::shared_ptr<void>> Bootstrap::all_gather_objects(std::shared_ptr<void>) {
  throw std::logic_error("all_gather_objects() requires ranks that are threads of one process");
}

std::shared_ptr<void> Bootstrap::object_of(int rank, std::shared_ptr<void> own) {
  return all_gather_objects(std::move(own))[static_cast<std::size_t>(rank)];
}

std::vector<int> global_ranks_of(const Bootstrap& bootstrap) {
  std::vector<int> global_ranks;
  for (int r = 0; r < bootstrap.rank_count(); ++r) global_ranks.push_back(bootstrap.global_rank(r));
  return global_ranks;
}

std::vector<int> RankGroup::global_ranks(const Bootstrap& parent) const {
  std::vector<int> global_ranks;
  for (const int member : members) global_ranks.push_back(parent.global_rank(member));
  return global_ranks;
}

RankGroup agree_on_group(Bootstrap& bootstrap, int color, int key) {
  struct Member {
    int key, rank;
  };
  std::vector<Member> found;
  const std::array own{color, key};
  const auto messages = bootstrap.all_gather({reinterpret_cast<const char*>(own.data()), sizeof own});
  for (int r = 0; r < bootstrap.rank_count(); ++r) {
    std::array<int, 2> theirs{};
    if (messages[r].size() != sizeof theirs) throw FaultError("a rank sent no color and key for a split");
    std::memcpy(theirs.data(), messages[r].data(), sizeof theirs);
    if (theirs[0] == color) found.push_back({theirs[1], r});
  }
  std::stable_sort(found.begin(), found.end(), [](const Member& a, const Member& b) { return a.key < b.key; });
  RankGroup group;
  for (const Member& member : found) {
    if (member.rank == bootstrap.rank()) group.rank = static_cast<int>(group.members.size());
    group.members.push_back(member.rank);
  }
  return group;
}

Topology topology_of_group(const Topology& parent, const std::vector<int>& members) {
  Topology topology{.node_of_rank = {}, .gpu_of_rank = {}, .over_nccl = parent.over_nccl};
  topology.nccl_staging_bytes = parent.nccl_staging_bytes;
  std::map<int, int> new_number;
  for (const int member : members) {
    const int node = parent.node_of_rank[member];
    topology.node_of_rank.push_back(new_number.try_emplace(node, static_cast<int>(new_number.size())).first->second);
    topology.gpu_of_rank.push_back(parent.gpu_of_rank[member]);
    if (!parent.numa_of_rank.empty()) topology.numa_of_rank.push_back(parent.numa_of_rank[member]);
  }
  return topology;
}

}  // namespace aliquot
