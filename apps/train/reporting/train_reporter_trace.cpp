// Writes the file of --trace.
#include <cstring>
#include <fmt/format.h>
#include <fstream>

#include "apps/console.h"
#include "apps/train/reporting/train_reporter.h"
#include "engine/cost/trace.h"

namespace aliquot {
namespace {

struct RankTimeline {
  double began;
  int64_t operation_count;
};

std::string packed(const Timeline& timeline, double began) {
  const RankTimeline head = {began, static_cast<int64_t>(timeline.operations.size())};
  std::string bytes(sizeof head + timeline.operations.size() * sizeof(TimeSpan), '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, timeline.operations.data(), timeline.operations.size() * sizeof(TimeSpan));
  return bytes;
}

/// Times of ranks on rank 0's node are relative to the start of rank 0's step. Clocks of other nodes are not
/// synchronized, so times of their ranks are relative to the start of their own step.
std::vector<RankTrace> unpacked(const std::vector<std::string>& ranks, const Topology& topology,
                                const std::vector<Plan>& stages) {
  std::vector<RankTrace> traces;
  double first = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    RankTimeline head;
    std::memcpy(&head, ranks[r].data(), sizeof head);
    if (r == 0) first = head.began;
    Timeline timeline;
    timeline.operations.resize(static_cast<std::size_t>(head.operation_count));
    std::memcpy(timeline.operations.data(), ranks[r].data() + sizeof head, ranks[r].size() - sizeof head);
    const double shift = topology.node_of_rank[r] == topology.node_of_rank[0] ? head.began - first : 0;
    for (TimeSpan& span : timeline.operations) span = {span.start_seconds + shift, span.end_seconds + shift};
    traces.push_back({&stages[r / (ranks.size() / stages.size())], std::move(timeline)});
  }
  return traces;
}

}  // namespace

void TrainReporter::write_trace_file() const {
  const std::string& path = context_.options().trace;
  World& world = context_.world();
  double began = 0;
  const Timeline own = context_.engine().timeline(&began);
  const auto all = world.communicator().gather_objects(packed(own, began));
  if (!context_.is_rank_zero()) return;
  if (own.operations.empty()) {
    warn("--trace {}: not written, because a trace needs at least three steps.", path);
    return;
  }
  std::ofstream file(path);
  write_trace(file, unpacked(all, world.topology(), context_.engine().pipeline_plans()));
  if (!file.flush()) throw FaultError(fmt::format("--trace {}: the file could not be written.", path));
}

}  // namespace aliquot
