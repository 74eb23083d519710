#include "apps/train/reporting/rank_timelines.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <span>
#include <string>

#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {
namespace {

struct Head {
  double began, step_seconds, compute_seconds, use_collective_seconds;
};

std::string packed(const Timeline& timeline, double began) {
  const Head head = {began, timeline.step_seconds, timeline.compute_seconds, timeline.use_collective_seconds};
  return to_bytes(std::span<const Head>(&head, 1)) + to_bytes(std::span<const TimeSpan>(timeline.operations));
}

/// Sets Timeline::begin_seconds to the steady-clock time at which the timeline begins.
Timeline unpacked(const std::string& bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  Timeline timeline;
  timeline.begin_seconds = head.began;
  timeline.step_seconds = head.step_seconds;
  timeline.compute_seconds = head.compute_seconds;
  timeline.use_collective_seconds = head.use_collective_seconds;
  timeline.operations = from_bytes<TimeSpan>(std::string_view(bytes).substr(sizeof head));
  return timeline;
}

double norm_end_seconds(const RankTrace& rank) {
  const auto& operations = rank.plan->schedule.operations;
  const auto norm = std::ranges::find(operations, Verb::kNorm, &Operation::verb);
  return rank.timeline.operations[static_cast<std::size_t>(norm - operations.begin())].end_seconds;
}

std::string process_name(int rank, const Plan& plan) {
  std::string name = fmt::format("rank {}", rank);
  if (plan.stage.count > 1) name += fmt::format(", pipeline stage {}", plan.stage.index);
  if (plan.policy.tensor > 1) name += fmt::format(", tensor rank {}", rank % plan.policy.tensor);
  return name;
}

}  // namespace

std::vector<RankTrace> gather_timelines(const TrainContext& context, TimelinesOf which) {
  World& world = context.world();
  const std::vector<Plan>& stages = context.engine().pipeline_plans();
  const int ranks_per_stage = world.rank_count() / static_cast<int>(stages.size());
  const bool takes_part = which == TimelinesOf::kAllRanks || world.rank() % ranks_per_stage == 0;
  double began = 0;
  const Timeline own = context.engine().timeline(&began);
  const ScopedCollectivePurpose purpose("report", context.engine().step_count());
  const auto all = world.communicator().gather_objects(takes_part ? packed(own, began) : std::string());
  if (!context.is_rank_zero() || own.operations.empty()) return {};
  std::vector<RankTrace> traces;
  std::vector<int> nodes;
  for (int rank = 0; rank < world.rank_count(); ++rank) {
    const std::string& bytes = all[static_cast<std::size_t>(rank)];
    if (bytes.empty()) continue;
    const Plan& plan = stages[static_cast<std::size_t>(rank / ranks_per_stage)];
    traces.push_back({&plan, unpacked(bytes), process_name(rank, plan)});
    nodes.push_back(world.topology().node_of_rank[static_cast<std::size_t>(rank)]);
  }
  place_on_one_clock(traces, nodes);
  return traces;
}

void place_on_one_clock(std::vector<RankTrace>& ranks, const std::vector<int>& nodes) {
  const double first = ranks.front().timeline.begin_seconds;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    double& begin = ranks[r].timeline.begin_seconds;
    begin = nodes[r] == nodes[0] ? begin - first : norm_end_seconds(ranks[0]) - norm_end_seconds(ranks[r]);
  }
}

}  // namespace aliquot
