#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <vector>

#include "apps/drawing/axis.h"
#include "apps/drawing/svg.h"
#include "apps/report/charts.h"
#include "apps/train/reporting/memory_table.h"

namespace aliquot {
namespace {

constexpr double kWidth = 480, kLeft = 104, kRight = 86, kTop = 34, kBar = 9, kRow = 27;

struct Bars {
  std::string name;
  int64_t planned = 0;
  int64_t measured = -1;  // measured bytes; -1: not measured
};

std::vector<Bars> bars_of(const ReportRun& run) {
  std::vector<Bars> bars;
  const Json& planned = run.record.run.at("plan").at("memory");
  const Json& done = run.record.done;
  for (const auto& [name, bytes] : planned.items()) {
    if (!bytes.is_number_integer()) continue;
    Bars bar{name, bytes.get<int64_t>(), -1};
    if (!done.is_null()) {
      bar.planned =
          name == "peak" ? done.value("planned_peak", bar.planned) : done.at("planned").value(name, bar.planned);
      bar.measured =
          name == "peak" ? done.value("measured_peak", int64_t{-1}) : done.at("measured").value(name, int64_t{-1});
    }
    if (bar.planned != 0 || bar.measured > 0) bars.push_back(bar);
  }
  return bars;
}

void draw_bar(Svg& svg, double y, int64_t bytes, const Axis& x, const std::string& style, const std::string& tip) {
  svg.rectangle({kLeft, y}, {std::max(x.at(static_cast<double>(bytes)) - kLeft, 0.5), kBar}, style, tip);
}

}  // namespace

std::string_view category_colour(std::string_view category) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kColours = {{{"parameters", "#0072B2"},
                                                                                      {"gradients", "#D55E00"},
                                                                                      {"optimizer", "#009E73"},
                                                                                      {"slots", "#56B4E9"},
                                                                                      {"communication", "#AA3377"},
                                                                                      {"staging", "#E69F00"},
                                                                                      {"activations", "#999999"}}};
  for (const auto& [name, colour] : kColours) {
    if (name == category) return colour;
  }
  return "#333333";
}

std::string memory_bars(const ReportRun& run) {
  const std::vector<Bars> bars = bars_of(run);
  int64_t most = 1;
  for (const Bars& bar : bars) most = std::max({most, bar.planned, bar.measured});
  Svg svg(kWidth, kTop + kRow * static_cast<double>(bars.size()) + 24, "Memory by category of " + run.name);
  svg.text({8, 20}, run.name, R"(font-weight="bold" font-size="13")");
  const Axis x(Axis::Scale::kEven, {0, static_cast<double>(most)}, {kLeft, kWidth - kRight});
  double y = kTop;
  for (const Bars& bar : bars) {
    const std::string colour(category_colour(bar.name));
    svg.text({kLeft - 8, y + 14}, bar.name, R"(text-anchor="end")");
    draw_bar(svg, y, bar.planned, x, fmt::format(R"(fill="white" stroke="{}")", colour),
             fmt::format("{} planned: {} bytes", bar.name, bar.planned));
    if (bar.measured >= 0)
      draw_bar(svg, y + kBar + 2, bar.measured, x, fmt::format(R"(fill="{0}" stroke="{0}")", colour),
               fmt::format("{} measured: {} bytes", bar.name, bar.measured));
    const double end = x.at(static_cast<double>(std::max(bar.planned, bar.measured))) + 6;
    const bool equal = bar.planned == bar.measured;
    svg.text({end, y + (equal ? 14 : 9)}, format_bytes(bar.planned), R"(font-size="11")");
    if (!equal && bar.measured >= 0)
      svg.text({end, y + 21}, format_bytes(bar.measured), R"(font-size="11" font-weight="bold")");
    y += kRow;
  }
  svg.text({8, y + 14}, "outlined: planned; filled: measured; largest value over all ranks",
           R"(font-size="11" fill="#555555")");
  return svg.finish();
}

}  // namespace aliquot
