#include "apps/explain/evidence.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/ranks_text.h"

namespace aliquot {
namespace {

bool has_times(const FlightRecord& record) {
  return std::ranges::any_of(record.entries, [](const FlightEntry& entry) { return entry.begun >= 0; });
}

bool was_ended_by_launcher(const FlightRecord& record) { return record.why.starts_with(kEndedByLauncher); }

/// Returns the mesh of the run, or nullopt if no record has a mesh. The files of the records are not trusted. Therefore
/// also returns nullopt if the meshes of two records differ, if a mesh does not match the number of ranks, or if it has
/// more than kMaxStages pipeline stages.
std::optional<Mesh> common_mesh(const std::vector<FlightRecord>& records) {
  std::optional<Mesh> mesh;
  for (const FlightRecord& record : records) {
    if (!record.mesh) continue;
    const auto& [pipeline, replica, shard, tensor] = record.mesh->counts;
    const Mesh own{.pipeline = pipeline, .replica = replica, .shard = shard, .tensor = tensor};
    if (mesh && *mesh != own) return std::nullopt;
    mesh = own;
  }
  constexpr int kMaxStages = 1024;  // limits the length of the report
  const auto fits = [&](const FlightRecord& record) {
    return record.rank_count == mesh->rank_count() && mesh->pipeline <= kMaxStages;
  };
  return mesh && std::ranges::all_of(records, fits) ? mesh : std::nullopt;
}

}  // namespace

Evidence::Evidence(std::vector<FlightRecord> flights)
    : records(std::move(flights)),
      timed(std::ranges::any_of(records, has_times)),
      ended_by_launcher(std::ranges::all_of(records, was_ended_by_launcher)) {
  std::ranges::sort(records, {}, &FlightRecord::rank);
  for (const FlightRecord& record : records) by_rank[record.rank] = &record;
  mesh = common_mesh(records);
  collectives = match_collectives(records);
}

bool Evidence::failed_itself(int rank) const {
  return has(rank) && of(rank).why.starts_with(fmt::format("rank {} failed", rank));
}

double Evidence::model_code_seconds(int rank, const FlightModelCode& code) const {
  return (code.ended < 0 ? of(rank).written : code.ended) - code.begun;
}

const FlightModelCode* Evidence::longest_model_code(int rank) const {
  if (!has(rank)) return nullptr;
  const FlightModelCode* longest = nullptr;
  for (const FlightModelCode& code : of(rank).model_code) {
    if (code.begun < 0) continue;
    if (longest == nullptr || model_code_seconds(rank, code) > model_code_seconds(rank, *longest)) longest = &code;
  }
  return longest;
}

double Evidence::blocked_seconds(int rank, const FlightEntry& entry) const {
  double seconds = waited_seconds(entry, of(rank));
  const double from = entry.begun, to = from + seconds;
  for (const FlightModelCode& code : of(rank).model_code)
    seconds -= std::max(0.0, std::min(to, code.begun + model_code_seconds(rank, code)) - std::max(from, code.begun));
  return seconds;
}

std::string Evidence::coordinates_text(int rank) const {
  if (!mesh || (mesh->pipeline == 1 && mesh->replica == 1)) return {};
  const MeshCoordinates at = mesh->coordinates(rank);
  std::string text;
  const auto add = [&](int count, std::string_view dimension, int coordinate) {
    if (count > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", dimension, coordinate);
  };
  add(mesh->pipeline, "pipeline stage", at.pipeline);
  add(mesh->replica, "replica", at.replica);
  add(mesh->shard, "shard", at.shard);
  add(mesh->tensor, "tensor", at.tensor);
  return text;
}

std::string Evidence::ranks_text(const std::vector<int>& ranks) const {
  if (!has_pipeline()) return aliquot::ranks_text(ranks);
  std::map<int, std::vector<int>> by_stage;
  for (const int rank : ranks) by_stage[mesh->coordinates(rank).pipeline].push_back(rank);
  std::string text;
  for (const auto& [stage, members] : by_stage)
    text += fmt::format("{}{} (pipeline stage {})", text.empty() ? "" : " and ", aliquot::ranks_text(members), stage);
  return text;
}

}  // namespace aliquot
