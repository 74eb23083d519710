#include "apps/train/reporting/stragglers.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/ranks_text.h"

namespace aliquot {

RankSeconds RankSeconds::of(const Timeline& step) {
  return {step.compute_seconds, std::max(0.0, step.step_seconds - step.compute_seconds), step.communication_seconds};
}

/// Uses the lower median, so that of two ranks the slower one is compared with the faster.
StragglerReport straggler_report(int64_t step, std::vector<RankSeconds> ranks, int stages) {
  StragglerReport report{.step = step, .ranks = std::move(ranks), .medians = {}};
  const size_t each = report.ranks.size() / static_cast<size_t>(stages);
  for (size_t first = 0; first < report.ranks.size(); first += each) {
    std::vector<double> compute;
    for (size_t rank = first; rank < first + each; ++rank) compute.push_back(report.ranks[rank].compute);
    std::ranges::sort(compute);
    report.medians.insert(report.medians.end(), each, compute[(each - 1) / 2]);
  }
  for (size_t rank = 1; rank < report.ranks.size(); ++rank) {
    if (report.ratio(rank) > report.ratio(static_cast<size_t>(report.slowest))) report.slowest = static_cast<int>(rank);
  }
  report.ratio_to_median = report.ratio(static_cast<size_t>(report.slowest));
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
            {"times_median", report.ratio_to_median},
            {"compute_seconds", compute},
            {"waiting_seconds", waiting},
            {"communication_seconds", communication}}}};
}

std::vector<int> StragglerWatch::count(const StragglerReport& report) {
  constexpr int kReports = 3;
  std::vector<int> slow;
  in_a_row_.resize(report.ranks.size());
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    in_a_row_[rank] = report.ratio(rank) > threshold_ ? in_a_row_[rank] + 1 : 0;
    if (in_a_row_[rank] == kReports) slow.push_back(static_cast<int>(rank));
  }
  return slow;
}

std::optional<std::string> StragglerWatch::sentence(const StragglerReport& report) {
  const std::vector<int> slow = count(report);
  if (slow.empty()) return std::nullopt;
  const auto worst = static_cast<size_t>(
      *std::ranges::max_element(slow, {}, [&](int rank) { return report.ratio(static_cast<size_t>(rank)); }));
  const bool one = slow.size() == 1;
  return fmt::format(
      "{} {} {:.2f} times as long as the median rank ({:.4g} s of step {}), and the other ranks wait for {}: check {}.",
      ranks_text(slow), one ? "computes" : "compute up to", report.ratio(worst), report.ranks[worst].compute,
      report.step, one ? "it" : "them", one ? "its node" : "their nodes");
}

}  // namespace aliquot
