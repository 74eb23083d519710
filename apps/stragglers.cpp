#include "apps/stragglers.h"

#include <algorithm>
#include <fmt/format.h>

namespace aliquot {

RankSeconds RankSeconds::of(const Timeline& step) {
  return {step.compute_seconds, std::max(0.0, step.step_seconds - step.compute_seconds), step.communication_seconds};
}

/// The lower median: of two ranks the quicker one is what the other is measured with.
StragglerReport straggler_report(int64_t step, std::vector<RankSeconds> ranks) {
  StragglerReport report{.step = step, .ranks = std::move(ranks)};
  std::vector<double> compute;
  for (const RankSeconds& rank : report.ranks) compute.push_back(rank.compute);
  report.slowest = static_cast<int>(std::ranges::max_element(compute) - compute.begin());
  const double most = compute[report.slowest];
  std::ranges::sort(compute);
  const double median = compute[(compute.size() - 1) / 2];
  report.times_median = median > 0 ? most / median : 1;
  return report;
}

Json json(const StragglerReport& report) {
  Json compute = Json::array(), waiting = Json::array(), communication = Json::array();
  for (const RankSeconds& rank : report.ranks) {
    compute.push_back(rank.compute);
    waiting.push_back(rank.waiting);
    communication.push_back(rank.communication);
  }
  return {{"stragglers",
           {{"step", report.step},
            {"slowest_rank", report.slowest},
            {"times_median", report.times_median},
            {"compute_seconds", compute},
            {"waiting_seconds", waiting},
            {"communication_seconds", communication}}}};
}

std::optional<std::string> StragglerWatch::sentence(const StragglerReport& report) {
  constexpr int kReports = 3;
  const bool slow = report.ranks.size() > 1 && report.times_median > threshold_;
  if (!slow || report.slowest != rank_) in_a_row_ = 0;
  rank_ = slow ? report.slowest : -1;
  if (!slow || ++in_a_row_ != kReports) return std::nullopt;
  return fmt::format(
      "rank {} computes {:.2f} times as long as the median rank ({:.4g} s of step {}), and the others wait for it: "
      "look at "
      "its node.",
      report.slowest, report.times_median, report.ranks[report.slowest].compute, report.step);
}

}  // namespace aliquot
