#include "apps/report/page.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

#include "apps/drawing/axis.h"
#include "apps/drawing/svg.h"
#include "apps/options/arguments.h"
#include "apps/report/charts.h"
#include "apps/train/reporting/memory_table.h"
#include "apps/version.h"
#include "kernels/system/format_bytes.h"

namespace aliquot {
namespace {

constexpr std::string_view kStyle = R"(
body { font-family: Helvetica, Arial, sans-serif; color: #222; background: white; max-width: 1000px; margin: 2em auto;
  padding: 0 1em; line-height: 1.4; }
h1 { font-size: 1.6em; margin-bottom: 0; }
h2 { font-size: 1.2em; margin: 2em 0 0.6em; border-bottom: 1px solid #ddd; padding-bottom: 0.2em; }
table { border-collapse: collapse; font-size: 0.85em; }
th, td { text-align: left; padding: 0.2em 0.9em 0.2em 0; border-bottom: 1px solid #eee; vertical-align: top; }
td.figure, th.figure { text-align: right; font-variant-numeric: tabular-nums; }
.pair { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 8px; }
.wide { overflow-x: auto; }
svg { max-width: 100%; height: auto; }
code, .hash { font-family: monospace; }
p.note { color: #555; font-size: 0.9em; }
@media print { h2 { break-after: avoid; } svg, tr { break-inside: avoid; } body { margin: 0; max-width: none; } }
)";

std::string cell(const std::string& text, std::string_view kind = "td", bool figure = false) {
  return fmt::format("<{0}{1}>{2}</{0}>", kind, figure ? " class=\"figure\"" : "", escaped(text));
}

/// The legend entry of a run: a short line in the style in which the charts draw the run.
std::string swatch(const ReportRun& run) {
  return fmt::format(
      "<svg width=\"34\" height=\"10\" role=\"img\"><title>{}</title><line x1=\"0\" y1=\"5\" x2=\"34\" y2=\"5\" "
      "stroke=\"{}\" stroke-width=\"2.5\" stroke-dasharray=\"{}\"/></svg>",
      escaped("line of " + run.name), run.colour, run.dashes);
}

std::string option_of(const ReportRun& run, const std::string& name) {
  return text_of(run.record.run.at("options").value(name, Json()));
}

double median_rate(const ReportRun& run) {
  std::vector<double> rates;
  for (const Json& step : run.record.steps) rates.push_back(step.value("tokens_per_second", 0.0));
  if (rates.size() > 1) rates.erase(rates.begin());  // the first step is a warm-up
  if (rates.empty()) return 0;
  const auto middle = rates.begin() + static_cast<ptrdiff_t>((rates.size() - 1) / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

std::string last_loss(const ReportRun& run) {
  if (run.record.steps.empty()) return "";
  const Json loss = run.record.steps.back().value("loss", Json());
  return loss.is_number() ? fmt::format("{:.4f}", loss.get<double>()) : "not finite";
}

std::string summary_row(const ReportRun& run) {
  const Json& done = run.record.done;
  const Json& world = run.record.run.at("world");
  std::string row = "<tr><td>" + swatch(run) + "</td>";
  row += cell(run.name) + cell(option_of(run, "model")) + cell(option_of(run, "zero-stage"), "td", true);
  row += cell(fmt::format("{}", world.value("ranks", 0)), "td", true) + cell(world.value("device", ""));
  row += cell(fmt::format("{}", run.record.steps.size()), "td", true) + cell(last_loss(run), "td", true);
  row += cell(fmt::format("{:.0f}", median_rate(run)), "td", true);
  row += cell(format_bytes(run.record.run.at("plan").at("memory").value("peak", int64_t{0})), "td", true);
  row += cell(done.is_null() ? "not finished" : format_bytes(done.value("measured_peak", int64_t{0})), "td", true);
  const std::string digest = done.is_null() ? "" : done.value("digest", "");
  return row +
         fmt::format("<td class=\"hash\" title=\"{}\">{}</td></tr>\n", escaped(digest), escaped(digest.substr(0, 12)));
}

std::string summary(const std::vector<ReportRun>& runs) {
  std::string text = "<div class=\"wide\"><table>\n<tr><th></th>";
  for (const char* name : {"run", "model"}) text += cell(name, "th");
  for (const char* name : {"ZeRO stage", "ranks"}) text += cell(name, "th", true);
  text += cell("device", "th");
  for (const char* name : {"steps", "last loss", "tokens/s", "planned", "measured"}) text += cell(name, "th", true);
  text += cell("digest", "th") + "</tr>\n";
  for (const ReportRun& run : runs) text += summary_row(run);
  return text +
         "</table></div>\n<p class=\"note\">tokens/s: median over all steps except the first. planned, measured: peak "
         "memory, largest over all ranks.</p>\n";
}

std::string curves(const std::vector<ReportRun>& runs) {
  std::string text = "<h2>Steps</h2>\n<div class=\"pair\">\n";
  std::vector<Curve> all = {{"loss", "loss"},
                            {"gradient norm, before clipping", "grad_norm"},
                            {"learning rate", "lr", true},
                            {"tokens per second", "tokens_per_second", true}};
  if (has_figure("eval_loss", runs)) all.push_back({"validation loss", "eval_loss", false, true});
  if (has_figure("loss_scale", runs)) all.push_back({"loss scale", "loss_scale", true});
  for (const Curve& curve : all) text += curve_chart(curve, runs);
  return text + "</div>\n";
}

std::string memory(const std::vector<ReportRun>& runs) {
  std::string text = "<h2>Planned and measured memory of a rank</h2>\n<div class=\"pair\">\n";
  for (const ReportRun& run : runs) text += memory_bars(run);
  return text + "</div>\n";
}

using Chart = std::string (*)(const ReportRun&);

std::string charts(const std::string& heading, const std::string& if_none, Chart chart,
                   const std::vector<ReportRun>& runs) {
  std::string text = "<h2>" + heading + "</h2>\n";
  for (const ReportRun& run : runs) {
    const std::string drawn = chart(run);
    text += drawn.empty() ? fmt::format("<p class=\"note\">{}: {}</p>\n", escaped(run.name), if_none) : drawn;
  }
  return text;
}

/// A table of the options that differ between runs, or of all options if there is one run.
std::string options(const std::vector<ReportRun>& runs) {
  const bool several = runs.size() > 1;
  std::string rows;
  for (const auto& [name, value] : runs.front().record.run.at("options").items()) {
    const bool same = std::ranges::all_of(runs, [&, &option = name](const ReportRun& run) {
      return option_of(run, option) == option_of(runs.front(), option);
    });
    if (several && same) continue;
    rows += "<tr>" + cell(name);
    for (const ReportRun& run : runs) rows += cell(option_of(run, name));
    rows += "</tr>\n";
  }
  std::string text = several ? "<h2>Options that differ</h2>\n" : "<h2>Options</h2>\n";
  if (rows.empty()) return text + "<p class=\"note\">none: the runs have the same options.</p>\n";
  text += "<div class=\"wide\"><table>\n<tr><th></th>";
  for (const ReportRun& run : runs) text += cell(run.name, "th");
  return text + "</tr>\n" + rows + "</table></div>\n";
}

/// A value of sweep.csv, as the page shows it.
std::string sweep_value(const std::string& column, const std::string& value) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) return value;
  if (column.ends_with("_peak") || column.ends_with("_bytes")) return format_bytes(static_cast<int64_t>(number));
  if (column == "tokens_per_second") return fmt::format("{:.0f}", number);
  return column == "step_seconds" ? fmt::format("{:.4g}", number) : value;
}

/// The columns of sweep.csv up to the reason. The columns after it, bytes by category, would not fit on the page.
std::string sweep_table(const std::vector<std::vector<std::string>>& table) {
  const std::vector<std::string>& columns = table.front();
  const auto shown = static_cast<size_t>(std::ranges::find(columns, "reason") - columns.begin() + 1);
  std::string text = "<div class=\"wide\"><table>\n";
  for (size_t r = 0; r < table.size(); ++r) {
    text += "<tr>";
    for (size_t c = 0; c < std::min(shown, table[r].size()); ++c) {
      const bool figure =
          c > 0 && !table[r][c].empty() && table[r][c].find_first_not_of("0123456789.e+-") == std::string::npos;
      std::string heading = table[r][c];
      std::ranges::replace(heading, '_', ' ');
      text += r == 0 ? cell(heading, "th") : cell(sweep_value(columns[c], table[r][c]), "td", figure);
    }
    text += "</tr>\n";
  }
  return text + "</table></div>\n<p class=\"note\">sweep.csv also has the bytes of each category.</p>\n";
}

std::string title_of(const std::vector<ReportRun>& runs, const std::vector<ReportPlan>& plans) {
  if (runs.empty() && plans.empty()) return "a sweep";
  if (runs.empty()) return plans.size() == 1 ? plans.front().name : fmt::format("{} plans", plans.size());
  return runs.size() == 1 ? runs.front().name : fmt::format("{} runs", runs.size());
}

}  // namespace

std::string report_page(const std::vector<ReportRun>& runs, const SweepResults& sweep,
                        const std::vector<ReportPlan>& plans) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>aliquot: "
      "{}</title>\n<style>{}</style>\n</head>\n"
      "<body>\n<h1>{}</h1>\n<p class=\"note\">written by aliquot report, {}</p>\n",
      escaped(title_of(runs, plans)), kStyle, escaped(title_of(runs, plans)), version());
  if (!runs.empty()) page += summary(runs) + curves(runs) + memory(runs);
  page += plan_section(plans) + pipeline_section(runs, plans);
  if (!runs.empty()) {
    page += charts("Memory at each operation of one step", "the record has no operations.", step_memory_chart, runs);
    page += charts("Lanes of one step", "no step was timed: this requires a finished run of at least three steps.",
                   step_lanes_chart, runs);
    page += charts("Ranks of one step", "the record has no straggler report (--stragglers-every), or only one rank.",
                   rank_table, runs);
    page += options(runs);
  }
  if (!sweep.table.empty()) page += "<h2>Memory by model size</h2>\n" + sweep.picture + sweep_table(sweep.table);
  return page + "</body>\n</html>\n";
}

}  // namespace aliquot
