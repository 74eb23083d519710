#include <algorithm>
#include <fmt/format.h>

#include "apps/drawing/svg.h"
#include "apps/report/charts.h"
#include "apps/train/reporting/memory_table.h"

namespace aliquot {
namespace {

std::string figure(const std::string& text) { return fmt::format("<td class=\"figure\">{}</td>", escaped(text)); }

std::string percent(const Json& share) { return fmt::format("{:.1f} %", 100 * share.get<double>()); }

std::string row(const ReportPlan& plan) {
  const Json& figures = plan.plan;
  const bool timed = figures.contains("step_seconds"), piped = figures.contains("bubble_share");
  std::string text = fmt::format("<tr><td>{}</td>", escaped(plan.name));
  for (const char* count : {"zero_stage", "ranks", "parameters"})
    text += figure(fmt::format("{}", figures.at(count).get<int64_t>()));
  text += figure(format_bytes(figures.at("memory").at("peak").get<int64_t>()));
  text += figure(piped ? fmt::format("{}", figures.at("stages").size()) : "");
  text += figure(timed ? fmt::format("{:.4g}", figures.at("step_seconds").get<double>()) : "");
  text += figure(piped ? percent(figures.at("bubble_share")) : "");
  text += figure(figures.contains("formula_bubble_share") ? percent(figures.at("formula_bubble_share")) : "");
  return text + fmt::format("<td>{}</td></tr>\n", timed ? escaped(figures.value("machine", "")) : "");
}

}  // namespace

std::string plan_section(const std::vector<ReportPlan>& plans) {
  if (plans.empty()) return {};
  std::string text = "<h2>Plans</h2>\n<div class=\"wide\"><table>\n<tr><th>plan</th>";
  for (const char* name :
       {"ZeRO stage", "ranks", "parameters", "peak", "pipeline stages", "step, s", "bubble", "bubble by the formula"})
    text += fmt::format("<th class=\"figure\">{}</th>", name);
  text += "<th>machine</th></tr>\n";
  for (const ReportPlan& plan : plans) text += row(plan);
  return text +
         "</table></div>\n<p class=\"note\">peak: planned memory of a rank. bubble: the part of the step in which the "
         "compute lane is idle, mean over the pipeline stages. The formula assumes that all passes take equally "
         "long.</p>\n";
}

}  // namespace aliquot
