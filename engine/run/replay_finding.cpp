#include "engine/run/replay_finding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <vector>

#include "engine/plan/slices.h"
#include "kernels/system/host_name.h"

namespace aliquot {
namespace {

/// Sets the nodes and hosts of the finding. Returns a text with all ranks.
std::string describe_ranks(const Plan& plan, const MeshGroups& groups, ReplayError::Finding& finding) {
  const std::vector<std::string> names = groups.world().communicator().gather_objects(host_name());
  std::vector<std::string> texts;
  std::set<int> nodes;
  std::set<std::string> hosts;
  for (const int rank : finding.ranks) {
    const auto index = static_cast<std::size_t>(rank);
    const int node = plan.world.node_of_rank[index];
    texts.push_back(fmt::format("rank {} (node {}, host {})", rank, node, names[index]));
    nodes.insert(node);
    hosts.insert(names[index]);
  }
  finding.nodes.assign(nodes.begin(), nodes.end());
  finding.hosts.assign(hosts.begin(), hosts.end());
  return fmt::format("{}", fmt::join(texts, " or "));
}

}  // namespace

void throw_replay_error(const Plan& plan, const MeshGroups& groups, const FirstDifference& first,
                        ReplayError::Finding finding, std::string_view wrong, int64_t step) {
  const std::string ranks = describe_ranks(plan, groups, finding);
  std::string where = "the first difference is in the loss or in data that it sent to another pipeline stage";
  if (first.flat >= 0) {
    finding.unit = plan.model.units[plan.flats[first.flat].unit].name;
    finding.block = first.block;
    const int tensor = groups.mesh().coordinates(first.owner).tensor;
    where = fmt::format("the first difference is in unit {}, block {} of its flat buffer, {}", finding.unit,
                        first.block, block_text(plan, first.flat, first.block, tensor));
  }
  throw ReplayError(
      fmt::format("silent data corruption, found in step {} before its update: {} computed {}, which other ranks "
                  "computed again{}; {}; resume from the last checkpoint, and test this machine",
                  step, ranks, wrong, finding.is_decided ? "" : " with another result, and no third rank could decide",
                  where),
      finding);
}

}  // namespace aliquot
