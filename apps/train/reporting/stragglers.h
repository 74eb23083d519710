#pragma once
// Detects stragglers: ranks for which the others wait.

#include <optional>
#include <string>
#include <vector>

#include "apps/metrics/metrics.h"
#include "engine/cost/simulate.h"

namespace aliquot {

/// How a rank spent the time of one step.
struct RankSeconds {
  double compute = 0;        // seconds in the model's code and in updates
  double waiting = 0;        // seconds of the step that are not in `compute`
  double communication = 0;  // seconds of all collectives, with their waits; overlaps with `compute` and `waiting`

  static RankSeconds of(const Timeline& step);
};

/// The times of one step, by rank. The ranks wait for the one that computes longest.
struct StragglerReport {
  int64_t step = 0;
  std::vector<RankSeconds> ranks;
  std::vector<double> medians;  // for each rank, the median compute time on its pipeline stage
  int slowest = 0;              // the rank with the highest ratio of compute time to median
  double ratio_to_median = 1;   // the compute time of rank `slowest`, divided by medians[slowest]

  double ratio(size_t rank) const { return medians[rank] > 0 ? ranks[rank].compute / medians[rank] : 1; }
};
/// Makes the report from the times of each rank. `stages` is the number of pipeline stages. The ranks of a pipeline
/// stage are consecutive. Pipeline stages have different work, so a rank is compared only with ranks of its pipeline
/// stage.
StragglerReport straggler_report(int64_t step, std::vector<RankSeconds> ranks, int stages = 1);

/// {"stragglers": {"step": .., "slowest_rank": .., "times_median": .., "compute_seconds": [..], ..}}
Json json(const StragglerReport& report);

/// Warns of ranks that computed more than `threshold` times as long as the median rank of their pipeline stage in three
/// consecutive reports. A single slow step is normal. Names a rank again only after a report in which it was not slow.
class StragglerWatch {
 public:
  explicit StragglerWatch(double threshold) : threshold_(threshold) {}
  /// Returns the warning, if this report causes one.
  std::optional<std::string> sentence(const StragglerReport& report);

 private:
  /// Adds the report to in_a_row_. Returns the ranks that are slow for the third report in a row.
  std::vector<int> count(const StragglerReport& report);

  double threshold_;
  // The number of consecutive reports, up to the last one, in which each rank was slow. Counted for every rank, because
  // on a slow node the slowest rank changes from step to step.
  std::vector<int> in_a_row_;
};

}  // namespace aliquot
