// The part of the report about the pipeline stages. If one pipeline stage dies or is late, its neighbors wait in
// receives, and the other pipeline stages wait for these neighbors.
#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "apps/explain/findings.h"
#include "apps/ranks_text.h"

namespace aliquot {
namespace {

std::vector<int> ranks_without_record(const Evidence& evidence) {
  std::vector<int> ranks;
  for (int rank = 0; rank < evidence.mesh->rank_count(); ++rank) {
    if (!evidence.has(rank)) ranks.push_back(rank);
  }
  return ranks;
}

/// The causes if find_missing_ranks() found none: the ranks that failed themselves, or else the ranks without a record.
std::vector<int> other_causes(const Evidence& evidence) {
  std::vector<int> causes;
  for (const FlightRecord& record : evidence.records) {
    if (evidence.failed_itself(record.rank)) causes.push_back(record.rank);
  }
  return causes.empty() ? ranks_without_record(evidence) : causes;
}

class PipelineReport {
 public:
  PipelineReport(const Evidence& evidence, std::vector<int> causes)
      : evidence_(evidence),
        causes_(std::move(causes)),
        is_cause_(causes_.begin(), causes_.end()),
        waits_(find_pending_collectives(evidence)) {}

  std::string text() const {
    std::string text;
    if (!causes_.empty()) text = fmt::format("First cause: {}.\n", evidence_.ranks_text(causes_));
    text += fmt::format("The mesh has {} pipeline stages:\n", evidence_.mesh->pipeline);
    for (int stage = 0; stage < evidence_.mesh->pipeline; ++stage) text += stage_text(stage);
    return text;
  }

 private:
  bool is_cause(int rank) const { return is_cause_.contains(rank); }

  /// Returns the collective in which the rank was blocked longest, or null if there is none.
  const PendingCollective* wait_of(int rank) const {
    const PendingCollective* longest = nullptr;
    double most = 0;
    for (const PendingCollective& wait : waits_) {
      if (std::ranges::find(wait.waiting, rank) == wait.waiting.end()) continue;
      const FlightEntry& entry = *wait.collective->by_rank.at(rank);
      const double seconds = entry.begun < 0 ? 0 : evidence_.blocked_seconds(rank, entry);
      if (longest != nullptr && seconds <= most) continue;
      longest = &wait;
      most = seconds;
    }
    return longest;
  }

  /// Describes a wait, for example "waited for rank 1, which also waited: barrier". Writes ", which also waited" only
  /// if all awaited ranks were blocked in a collective themselves, and none of them is a first cause.
  std::string waiting_text(const PendingCollective& wait) const {
    const std::vector<int>& awaited = wait.missing.empty() ? wait.late : wait.missing;
    const bool victims = std::ranges::none_of(awaited, [this](int rank) { return is_cause(rank); }) &&
                         std::ranges::all_of(awaited, [this](int rank) { return wait_of(rank) != nullptr; });
    const FlightEntry& entry = *wait.collective->by_rank.at(wait.waiting.front());
    return fmt::format("waited for {}{}: {}", evidence_.ranks_text(awaited), victims ? ", which also waited" : "",
                       operation_text(entry));
  }

  std::string state_text(int rank) const {
    if (is_cause(rank)) return evidence_.has(rank) ? "is the first cause" : "is the first cause, and left no record";
    if (!evidence_.has(rank)) return "left no record";
    const PendingCollective* wait = wait_of(rank);
    return wait != nullptr ? waiting_text(*wait) : "waited in no collective";
  }

  /// Returns one line for each different result of state_text() on the pipeline stage. The line names the ranks with
  /// this result.
  std::string stage_text(int stage) const {
    std::vector<std::pair<std::string, std::vector<int>>> states;
    // The ranks of a pipeline stage are contiguous.
    const int count = evidence_.mesh->rank_count() / evidence_.mesh->pipeline;
    for (int rank = stage * count; rank < (stage + 1) * count; ++rank) {
      std::string state = state_text(rank);
      const auto same = std::ranges::find(states, state, [](const auto& each) { return each.first; });
      (same != states.end() ? *same : states.emplace_back(std::move(state), std::vector<int>{})).second.push_back(rank);
    }
    std::string text;
    for (const auto& [state, ranks] : states)
      text += fmt::format("  pipeline stage {}: {} {}.\n", stage, ranks_text(ranks), state);
    return text;
  }

  const Evidence& evidence_;
  std::vector<int> causes_;
  std::set<int> is_cause_;
  std::vector<PendingCollective> waits_;
};

}  // namespace

std::string pipeline_text(const Evidence& evidence, std::vector<int> causes) {
  if (!evidence.has_pipeline()) return {};
  if (causes.empty()) causes = other_causes(evidence);
  return PipelineReport(evidence, std::move(causes)).text();
}

}  // namespace aliquot
