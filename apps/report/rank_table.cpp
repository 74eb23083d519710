#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "apps/drawing/svg.h"
#include "apps/report/charts.h"

namespace aliquot {
namespace {

constexpr std::array kColumns = {"compute_seconds", "waiting_seconds", "communication_seconds"};

/// The value of a rank; 0 if it is missing or not a number. Records are untrusted input.
double seconds_of(const Json& report, const char* column, std::size_t rank) {
  if (!report.contains(column) || !report[column].is_array()) return 0;
  const Json& values = report[column];
  return rank < values.size() && values[rank].is_number() ? values[rank].get<double>() : 0;
}

double number(const Json& report, const char* field) {
  return report.contains(field) && report[field].is_number() ? report[field].get<double>() : 0;
}

}  // namespace

std::string rank_table(const ReportRun& run) {
  constexpr std::size_t kMost = 256;
  const Json& report = run.record.stragglers;
  if (!report.is_object()) return "";
  if (!report.contains(kColumns[0]) || !report[kColumns[0]].is_array()) return "";
  const std::size_t ranks = report[kColumns[0]].size();
  if (ranks < 2) return "";
  std::string text = fmt::format(
      "<p class=\"note\">{}: step {}; rank {} computed longest, {:.2f} times the median.</p>\n<div "
      "class=\"wide\"><table>\n"
      "<tr><th class=\"figure\">rank</th><th class=\"figure\">compute, s</th><th class=\"figure\">waiting, s</th>"
      "<th class=\"figure\">communication, s</th></tr>\n",
      escaped(run.name), number(report, "step"), number(report, "slowest_rank"), number(report, "times_median"));
  for (std::size_t rank = 0; rank < std::min(ranks, kMost); ++rank) {
    text += fmt::format("<tr><td class=\"figure\">{}</td>", rank);
    for (const char* column : kColumns)
      text += fmt::format("<td class=\"figure\">{:.4g}</td>", seconds_of(report, column, rank));
    text += "</tr>\n";
  }
  return text + "</table></div>\n";
}

}  // namespace aliquot
