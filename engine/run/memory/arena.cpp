#include "engine/run/memory/arena.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <utility>
#include <vector>

#include "engine/run/memory/aliased_pages.h"
#include "kernels/system/error.h"
#include "kernels/system/format_bytes.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {
namespace {

/// The largest categories of the plan's memory, e.g. "optimizer 12.0 GiB, parameters 3.0 GiB".
std::string largest_parts(const Plan& plan) {
  constexpr std::size_t kMost = 4;
  const BytesByCategory bytes = account(plan.schedule).peak;
  std::vector<std::pair<int64_t, Category>> parts;
  for (int c = 0; c < kCategoryCount; ++c) {
    if (bytes[static_cast<std::size_t>(c)] > 0)
      parts.emplace_back(bytes[static_cast<std::size_t>(c)], static_cast<Category>(c));
  }
  std::ranges::sort(parts, std::greater());
  parts.resize(std::min(parts.size(), kMost));
  std::vector<std::string> texts;
  for (const auto& [size_bytes, category] : parts)
    texts.push_back(fmt::format("{} {}", name(category), format_bytes(size_bytes)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

Arena::Arena(const Plan& training, const std::vector<const Plan*>& others, const MeshGroups& groups) {
  Communicator& world = groups.world().communicator();
  int64_t own = training.schedule.bytes(Space::kArena);
  for (const Plan* plan : others) own = std::max(own, plan->schedule.bytes(Space::kArena));
  const RankSizes sizes = groups.mesh().pipeline == 1 ? RankSizes::kEqual : RankSizes::kMayDiffer;
  try {
    world_ = world.allocate(own, sizes, Category::kArena, "arena");
  } catch (const UnavailableError& error) {
    throw UnavailableError(
        fmt::format("{}; the largest parts of this rank's plan are {}", error.what(), largest_parts(training)));
  }
  for (const GroupId group : kMemoryGroups) {
    if (group != GroupId::kShard && groups.mesh().size(group) == 1) continue;
    Communicator& ranks = groups.at(group);
    if (&ranks != &world)
      views_[memory_index(group)] = ranks.attach(world_, groups.mesh().members(group, world.rank()));
  }
  for (const std::optional<Verb> verb : groups.pair_rounds()) {
    if (!verb) continue;
    const auto ranks = groups.mesh().members(info(*verb).group, world.rank());
    pairs_[MeshGroups::pair_index(*verb)] = groups.pair(*verb).communicator().attach(world_, ranks);
  }
  const bool aliases = training.policy.check && !training.topology.has_gpus();
  if (aliases) make_aliasable(world_.local(), world_.size_bytes());
  if (training.schedule.zero_stage < 3) return;
  Communicator& replica = groups.shard_group();
  const int64_t shared = training.schedule.bytes(Space::kSharedRange);
  // Pipeline stages that span nodes gather copies, even if other stages use views. The ranks of such a stage allocate
  // no shared range, but take part in the collective calls.
  const bool view = training.schedule.view;
  const auto allocate = [&] {
    if (!view) return;
    shared_ = replica.allocate_shared(shared, shared / replica.rank_count(), Category::kArena, "parameter shards");
  };
  // If one group fails to allocate, all ranks must throw. Otherwise the other groups would wait for the failed group.
  if (&replica == &world) {
    allocate();
  } else {
    run_on_all_or_throw(world, allocate);
  }
  if (!aliases || !view) return;
  // If ranks are threads, they share one mapping of the range, so only one rank prepares it.
  if (replica.rank() == 0) make_aliasable(shared_->writable(), shared_->size_bytes());
  replica.gather_objects("aliasable");
}

}  // namespace aliquot
