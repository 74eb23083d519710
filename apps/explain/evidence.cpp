#include "apps/explain/evidence.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/plan/mesh.h"

namespace aliquot {
namespace {

bool has_times(const FlightRecord& record) {
  return std::ranges::any_of(record.entries, [](const FlightEntry& entry) { return entry.begun >= 0; });
}

bool was_ended_by_launcher(const FlightRecord& record) { return record.why.starts_with(kEndedByLauncher); }

}  // namespace

Evidence::Evidence(std::vector<FlightRecord> flights)
    : records(std::move(flights)),
      timed(std::ranges::any_of(records, has_times)),
      ended_by_launcher(std::ranges::all_of(records, was_ended_by_launcher)) {
  std::ranges::sort(records, {}, &FlightRecord::rank);
  for (const FlightRecord& record : records) by_rank[record.rank] = &record;
  collectives = match_collectives(records);
}

std::string Evidence::rank_text(int rank) const {
  std::string text = fmt::format("rank {}", rank);
  const auto& [pipeline, replica, shard, tensor] = by_rank.begin()->second->mesh;
  if (pipeline <= 1 && replica <= 1) return text;
  const Mesh mesh{.pipeline = pipeline, .replica = replica, .shard = shard, .tensor = tensor};
  const MeshCoordinates at = mesh.coordinates(rank);
  std::vector<std::string> parts;
  if (pipeline > 1) parts.push_back(fmt::format("pipeline stage {} of {}", at.pipeline, pipeline));
  if (replica > 1) parts.push_back(fmt::format("replica {} of {}", at.replica, replica));
  if (shard > 1) parts.push_back(fmt::format("shard {} of {}", at.shard, shard));
  return text + fmt::format(" ({})", fmt::join(parts, ", "));
}

}  // namespace aliquot
