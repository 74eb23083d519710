#include "apps/plan/mesh_table.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/drawing/axis.h"
#include "kernels/system/format_bytes.h"

namespace aliquot {
namespace {

std::string share_text(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string schedule_text(const MeshChoice& choice) {
  if (choice.mesh.pipeline == 1) return "-";
  const std::string_view schedule = name(choice.schedule);
  return choice.virtual_stages == 1 ? std::string(schedule) : fmt::format("{} {}", schedule, choice.virtual_stages);
}

std::string recompute_text(int recompute) {
  if (recompute == kRecomputeAll) return "block";
  return recompute <= 0 ? "none" : std::to_string(recompute);
}

std::string zero_text(const MeshChoice& choice) {
  const bool once = choice.zero_stage == 3 && choice.gather_for == kGatherForStep;
  return fmt::format("{}{}", choice.zero_stage, once ? " step" : "");
}

std::string heading(const PlanOptions& o, const MeshSearch& search) {
  std::string text = fmt::format("{}, {} parameters on {} ranks, {} on a node; {} sequences ({} tokens) per step\n",
                                 model_name(o), count_text(static_cast<double>(search.parameters)), o.ranks,
                                 ranks_per_node(o), search.global_batch, count_text(search.tokens));
  if (search.limit)
    text += fmt::format("  a rank has {} of {}\n", format_bytes(search.limit->bytes), search.limit->source);
  return text + fmt::format("  simulated on {}: {} meshes with {} choices of options\n", machine_name(o), search.meshes,
                            search.choices);
}

std::string choice_rows(const MeshSearch& search) {
  constexpr std::string_view kRow = "  {:<14}{:>8}{:>13}{:>16}{:>11}{:>11}{:>9}{:>12}\n";
  std::string text =
      fmt::format(kRow, "mesh PxRxSxT", "ZeRO", "micro-batch", "schedule", "recompute", "memory", "s/step", "tokens/s");
  for (const MeshResult& each : search.best) {
    const MeshChoice& choice = each.choice;
    text += fmt::format(kRow, mesh_text(choice.mesh), zero_text(choice),
                        fmt::format("{} x {}", choice.accumulate, choice.micro_batch), schedule_text(choice),
                        recompute_text(choice.recompute), format_bytes(each.rank_bytes),
                        fmt::format("{:.3g}", each.seconds), count_text(search.tokens / each.seconds));
  }
  return text;
}

std::string limit_rows(const MeshSearch& search) {
  constexpr std::string_view kRow = "  {:<14}{:>12}{:>12}{:>9}{:>7}{:>9}{:>9}  {}\n";
  std::string text = fmt::format(kRow, "mesh PxRxSxT", "rank sends", "node sends", "compute", "waits", "in node",
                                 "between", "limited by");
  for (const MeshResult& each : search.best) {
    text +=
        fmt::format(kRow, mesh_text(each.choice.mesh), format_bytes(each.sent_bytes), format_bytes(each.crossing_bytes),
                    share_text(each.shares.compute), share_text(each.shares.waits), share_text(each.shares.inside_node),
                    share_text(each.shares.between_nodes), limiting_part(each.shares));
  }
  return text;
}

}  // namespace

std::string_view limiting_part(const StepShares& shares) {
  const std::array<std::pair<double, std::string_view>, 4> parts = {std::pair{shares.compute, "computation"},
                                                                    {shares.waits, "waits for pipeline stages"},
                                                                    {shares.inside_node, "links inside a node"},
                                                                    {shares.between_nodes, "links between nodes"}};
  return std::ranges::max_element(parts, {}, &std::pair<double, std::string_view>::first)->second;
}

std::string mesh_table(const PlanOptions& options, const MeshSearch& search) {
  if (search.best.empty())
    return heading(options, search) + fmt::format("  {}\n\n", search.reason(machine_name(options)));
  return heading(options, search) + "\n" + choice_rows(search) + "\n" + limit_rows(search) +
         fmt::format("\n  best: {}\n\n", options_text(search.best.front().choice));
}

std::vector<Json> mesh_json(const MeshSearch& search) {
  std::vector<Json> rows;
  for (const MeshResult& each : search.best) {
    const Mesh& mesh = each.choice.mesh;
    Json row = {{"mesh", mesh_text(mesh)},       {"pipeline", mesh.pipeline},   {"replicas", mesh.replica},
                {"shards", mesh.shard},          {"tensor", mesh.tensor},       {"options", options_text(each.choice)},
                {"rank_bytes", each.rank_bytes}, {"step_seconds", each.seconds}};
    row["tokens_per_second"] = search.tokens / each.seconds;
    row["rank_sent_bytes"] = each.sent_bytes;
    row["node_sent_bytes"] = each.crossing_bytes;
    row["shares"] = {{"compute", each.shares.compute},
                     {"waits", each.shares.waits},
                     {"inside_node", each.shares.inside_node},
                     {"between_nodes", each.shares.between_nodes}};
    row["limited_by"] = limiting_part(each.shares);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace aliquot
