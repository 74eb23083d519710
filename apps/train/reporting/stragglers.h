#pragma once
// Which ranks keep the others waiting.

#include <optional>
#include <string>
#include <vector>

#include "apps/metrics/metrics.h"
#include "engine/cost/simulate.h"

namespace aliquot {

/// Where a rank's step went.
struct RankSeconds {
  double compute = 0;        // the model's code and the updates
  double waiting = 0;        // the rest of the step, where its own thread had nothing to do
  double communication = 0;  // of all collectives, their waits for others included; beside the two above

  static RankSeconds of(const Timeline& step);
};

/// What is told of one step, by rank. A rank that computes longer than the others is what they wait for.
struct StragglerReport {
  int64_t step = 0;
  std::vector<RankSeconds> ranks;
  int slowest = 0;             // by compute
  double median_seconds = 0;   // that the median rank computed
  double ratio_to_median = 1;  // what the slowest computed, of that
};
StragglerReport straggler_report(int64_t step, std::vector<RankSeconds> ranks);

/// {"stragglers": {"step": .., "slowest_rank": .., "times_median": .., "compute_seconds": [..], ..}}
Json json(const StragglerReport& report);

/// Names the ranks that computed more than `threshold` times as long as the median rank in three reports that follow one another,
/// several in one sentence: one slow step is nobody's fault. Says it of a rank once, until it was not slow.
class StragglerWatch {
 public:
  explicit StragglerWatch(double threshold) : threshold_(threshold) {}
  std::optional<std::string> sentence(const StragglerReport& report);

 private:
  /// The ranks whose third report in a row this is.
  std::vector<int> count(const StragglerReport& report);

  double threshold_;
  std::vector<int> in_a_row_;  // by rank: a node's ranks are slow together, and which of them is slowest changes
};

}  // namespace aliquot
