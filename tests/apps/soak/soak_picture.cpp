// Draws the result of scripts/soak.sh: the samples over time, and the times at which the run was disturbed.
#include <algorithm>
#include <fmt/format.h>

#include "apps/drawing/axis.h"
#include "tests/apps/soak/soak_samples.h"

namespace aliquot::test {
namespace {

constexpr double kWidth = 1000, kLeft = 70, kRight = 20, kTop = 66, kPanelHeight = 92, kGap = 30, kFoot = 40;
constexpr std::string_view kGrey = R"(fill="#555555" font-size="11")";

// Returns the colour of a series. Colour-blind readers can distinguish the two colours of processes, which are from the
// palette of Okabe and Ito.
std::string_view colour_of(const Series& series) {
  if (series.process.empty()) return "#333333";
  return series.world == "mpi" ? "#0072B2" : "#D55E00";
}

std::vector<std::string> measures_of(const std::vector<Series>& series) {
  std::vector<std::string> names;
  for (const Series& one : series) {
    if (std::ranges::find(names, one.measure) == names.end()) names.push_back(one.measure);
  }
  return names;
}

void draw_panel(Svg& svg, const std::string& measure, const std::vector<Series>& series, const Axis& x, double top) {
  double maximum = 1;
  for (const Series& one : series) {
    if (one.measure != measure) continue;
    for (const Point& p : one.points) maximum = std::max(maximum, p.y);
  }
  const Axis y(Axis::Scale::kEven, {0, 1.08 * maximum}, {top + kPanelHeight, top});
  svg.text({kLeft, top - 7}, measure, R"(font-size="12" font-weight="bold")");
  for (const double tick : y.round_ticks(4)) {
    svg.line({kLeft, y.at(tick)}, {kWidth - kRight, y.at(tick)}, R"(stroke="#e4e4e4")");
    svg.text({kLeft - 7, y.at(tick) + 4}, tick_text(tick), R"(text-anchor="end" font-size="11")");
  }
  for (const Series& one : series) {
    if (one.measure != measure) continue;
    std::vector<Point> places;
    for (const Point& p : one.points) places.push_back({x.at(p.x), y.at(p.y)});
    svg.path(places, fmt::format(R"(stroke="{}" stroke-width="1.2")", colour_of(one)));
  }
}

/// Draws one vertical line across all panels for each event. The line is red if the event is a kill, and grey
/// otherwise.
void draw_events(Svg& svg, const std::vector<Event>& events, const Axis& x, double bottom) {
  for (const Event& event : events) {
    const bool is_kill = event.what.starts_with("kill");
    svg.line({x.at(event.seconds), kTop - 4}, {x.at(event.seconds), bottom},
             fmt::format(R"(stroke="{}" stroke-width="0.6" stroke-opacity="0.5")", is_kill ? "#CC0000" : "#888888"));
  }
}

void draw_time(Svg& svg, const Axis& x, double bottom) {
  for (const double tick : x.round_ticks(10)) {
    svg.line({x.at(tick), bottom}, {x.at(tick), bottom + 5}, R"(stroke="#333333")");
    svg.text({x.at(tick), bottom + 18}, tick_text(tick), R"(text-anchor="middle" font-size="11")");
  }
  svg.line({kLeft, bottom}, {kWidth - kRight, bottom}, R"(stroke="#333333")");
  svg.text({(kLeft + kWidth) / 2, bottom + 34}, "seconds", R"(text-anchor="middle" font-size="12")");
}

}  // namespace

std::string soak_picture(const std::vector<Series>& series, const std::vector<Event>& events) {
  const std::vector<std::string> measures = measures_of(series);
  const auto panels = static_cast<double>(measures.size());
  const double bottom = kTop + panels * (kPanelHeight + kGap) - kGap;
  double end = 1;
  for (const Series& one : series) end = std::max(end, one.points.back().x);
  const Axis x(Axis::Scale::kEven, {0, end}, {kLeft, kWidth - kRight});
  const std::string title = "Resources of a run that is killed, stopped, resized and left undisturbed";
  Svg svg(kWidth, bottom + kFoot, title);
  svg.text({16, 24}, title, R"(font-size="17" font-weight="bold")");
  svg.text({16, 42},
           "Blue: ranks under mpirun, one line per process. Orange: ranks as threads of one process. Red: kills. "
           "Grey: signals and new numbers of ranks.",
           kGrey);
  draw_events(svg, events, x, bottom);
  for (size_t m = 0; m < measures.size(); ++m)
    draw_panel(svg, measures[m], series, x, kTop + static_cast<double>(m) * (kPanelHeight + kGap));
  draw_time(svg, x, bottom);
  return svg.finish();
}

}  // namespace aliquot::test
