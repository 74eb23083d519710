#include "apps/options/mesh_option.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kMostOfDimension = 1 << 16;
constexpr int64_t kMostRanks = 1 << 20;

/// Parses numbers with an x between them. Returns nullopt if there are not exactly four, or if one is out of range.
std::optional<std::array<int64_t, 4>> parse_dimensions(std::string_view text) {
  std::array<int64_t, 4> counts{};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto end = i + 1 < counts.size() ? text.find('x') : text.size();
    if (end == std::string_view::npos || end == 0) return std::nullopt;
    if (text.substr(0, end).find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
    const auto read = std::from_chars(text.data(), text.data() + end, counts[i]);
    if (read.ec != std::errc() || counts[i] < 1 || counts[i] > kMostOfDimension) return std::nullopt;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return counts;
}

}  // namespace

bool MeshOption::keeps(std::string_view name) const { return std::ranges::find(kept, name) != kept.end(); }

std::string mesh_text(const Mesh& mesh) {
  return fmt::format("{}x{}x{}x{}", mesh.pipeline, mesh.replica, mesh.shard, mesh.tensor);
}

MeshOption parse_mesh(std::string_view text) {
  if (text == "auto") return {.given = {}, .automatic = true};
  const auto counts = parse_dimensions(text);
  if (!counts) {
    throw UsageError(
        fmt::format("invalid value '{}': expected auto, or the numbers of pipeline stages, replicas, ranks of a shard "
                    "group and ranks of a tensor group, each from 1 to {}, for example 2x1x4x8.",
                    text, kMostOfDimension));
  }
  int64_t ranks = 1;
  for (const int64_t count : *counts) ranks = std::min(ranks * count, kMostRanks + 1);
  if (ranks > kMostRanks)
    throw UsageError(fmt::format("invalid value '{}': expected at most {} ranks.", text, kMostRanks));
  const auto count = [&](std::size_t i) { return static_cast<int>((*counts)[i]); };
  return {.given = Mesh{.pipeline = count(0), .replica = count(1), .shard = count(2), .tensor = count(3)}};
}

void add_mesh(OptionTable& table, MeshOption& mesh) {
  table.add({"mesh", "PxRxSxT|auto",
             "Numbers of pipeline stages, replicas, ranks of a shard group and ranks of a tensor group, in place of "
             "--pipeline, --replicas and --tensor; auto: the fastest mesh that fits, by simulation, for a fixed global "
             "batch. Also chooses --zero-stage, --micro-batch, --recompute, --gather-for and --pipeline-schedule, "
             "except those that are given.",
             false, [&mesh](std::string_view text) { mesh = parse_mesh(text); },
             [&mesh]() -> OptionValue {
               if (mesh.given) return mesh_text(*mesh.given);
               return mesh.automatic ? OptionValue("auto") : OptionValue();
             }});
}

void remove_replaced_by_mesh(std::vector<GivenOption>& given) {
  const auto on_line = std::find_if(given.rbegin(), given.rend(),
                                    [](const GivenOption& one) { return one.name == "mesh" && !one.from_file; });
  if (on_line == given.rend()) return;
  std::vector<std::string> replaced = {"mesh",         "pipeline",       "replicas",           "tensor",
                                       "pipeline-cut", "virtual-stages", "pipeline-order-from"};
  const bool automatic = on_line->value == "auto";
  const bool file_has_mesh = std::ranges::any_of(
      given, [](const GivenOption& one) { return one.name == "mesh" && one.from_file && one.value != "auto"; });
  if (!automatic) replaced.emplace_back("ranks");
  if (automatic && file_has_mesh) {
    replaced.insert(replaced.end(), {"zero-stage", "micro-batch", "recompute", "gather-for", "pipeline-schedule"});
  }
  if (std::ranges::find(given, "global-batch", &GivenOption::name) != given.end()) replaced.emplace_back("accumulate");
  std::erase_if(given, [&](const GivenOption& one) {
    return one.from_file && std::ranges::find(replaced, one.name) != replaced.end();
  });
}

void apply_mesh(MeshOption& mesh, const std::vector<GivenOption>& given, EngineOptions& engine) {
  mesh.kept.clear();
  for (const GivenOption& one : given) {
    if (!one.is_default) mesh.kept.push_back(one.name);
  }
  if (!mesh.given) return;
  const auto own = std::ranges::find(given, "mesh", &GivenOption::name);
  const std::string where = own == given.end() ? "--mesh" : own->where;
  const auto check = [&](std::string_view name, int64_t count) {
    for (const GivenOption& one : given) {
      if (one.name != name || parse_count(one.value, {}) == count) continue;
      throw UsageError(fmt::format("{} {} contradicts {} {}: leave one of them out.", where, mesh_text(*mesh.given),
                                   one.where, one.value));
    }
  };
  check("pipeline", mesh.given->pipeline);
  check("replicas", mesh.given->replica);
  check("tensor", mesh.given->tensor);
  check("ranks", mesh.given->rank_count());
  engine.pipeline = mesh.given->pipeline;
  engine.replicas = mesh.given->replica;
  engine.tensor = mesh.given->tensor;
}

}  // namespace aliquot
