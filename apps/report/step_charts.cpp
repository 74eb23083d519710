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

constexpr double kWidth = 980, kLeft = 74, kRight = 130, kTop = 34;
constexpr double kMemoryHeight = 270, kMemoryBottom = 38;
constexpr double kLaneRow = 34, kLaneBar = 22;

/// The size in bytes of one memory category at each operation.
struct Layer {
  std::string category;
  std::vector<double> bytes;
};

std::vector<Layer> layers_of(const Json& run) {
  std::vector<Layer> layers;
  const Json& plan = run.at("plan");
  const Json& step = plan.at("step");
  for (const auto& [category, bytes] : step.at("bytes").items()) layers.push_back({category, bytes});
  // Records that older versions wrote do not have the activations in use at each operation. They have one number for
  // the whole step.
  const double lasting = step.at("bytes").contains("activations") ? 0.0 : plan.at("memory").value("activations", 0.0);
  if (lasting > 0) layers.push_back({"activations", std::vector<double>(step.at("titles").size(), lasting)});
  return layers;
}

/// The outline of one band of a stacked chart, drawn between `below` and `above`. Each operation has the same width on
/// the x axis.
std::vector<Point> outline(const std::vector<double>& below, const std::vector<double>& above, const Axis& x,
                           const Axis& y) {
  std::vector<Point> points;
  for (size_t i = 0; i < above.size(); ++i) {
    points.push_back({x.at(static_cast<double>(i)), y.at(above[i])});
    points.push_back({x.at(static_cast<double>(i + 1)), y.at(above[i])});
  }
  for (size_t i = below.size(); i-- > 0;) {
    points.push_back({x.at(static_cast<double>(i + 1)), y.at(below[i])});
    points.push_back({x.at(static_cast<double>(i)), y.at(below[i])});
  }
  return points;
}

void draw_memory_frame(Svg& svg, const Axis& x, const Axis& y, const Json& titles) {
  double unit = 1;
  while (y.values().to >= 1024 * unit) unit *= 1024;
  for (const double tick : Axis(Axis::Scale::kEven, {0, y.values().to / unit}, {0, 1}).round_ticks(5)) {
    svg.line({kLeft, y.at(tick * unit)}, {kWidth - kRight, y.at(tick * unit)}, R"(stroke="#e4e4e4")");
    svg.text({kLeft - 6, y.at(tick * unit) + 4}, tick_bytes_text(tick * unit), R"(text-anchor="end" font-size="11")");
  }
  const double bottom = kMemoryHeight - kMemoryBottom;
  double end = 0;
  for (size_t i = 0; i < titles.size(); ++i) {  // skips titles that would overlap another title
    const std::string title = titles[i].get<std::string>();
    const double at = x.at(static_cast<double>(i) + 0.5), half = 2.9 * static_cast<double>(title.size());
    if (!title.starts_with("forward") && !title.starts_with("backward") && !title.starts_with("norm")) continue;
    if (at - half < end + 6 || at + half > kWidth - kRight + 20) continue;
    svg.line({at, bottom}, {at, bottom + 4}, R"(stroke="#333333")");
    svg.text({at, bottom + 16}, title, R"(text-anchor="middle" font-size="10")");
    end = at + half;
  }
  svg.line({kLeft, bottom}, {kWidth - kRight, bottom}, R"(stroke="#333333")");
}

void draw_peak(Svg& svg, const std::vector<double>& sum, const Axis& x, const Axis& y, const Json& titles) {
  const auto peak = static_cast<size_t>(std::max_element(sum.begin(), sum.end()) - sum.begin());
  const Point at = {x.at(static_cast<double>(peak) + 0.5), y.at(sum[peak])};
  svg.mark(Mark::kTriangle, {at.x, at.y - 5}, 3.5, R"(fill="black")");
  const bool at_right = at.x > kWidth / 2;
  svg.text({at.x + (at_right ? -8 : 8), at.y - 5},
           fmt::format("peak {} at {}", format_bytes(static_cast<int64_t>(sum[peak])), titles[peak].get<std::string>()),
           at_right ? R"(text-anchor="end" font-size="11")" : R"(font-size="11")");
}

std::string_view verb_colour(std::string_view title) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kColours = {{{"forward", "#0072B2"},
                                                                                       {"backward", "#D55E00"},
                                                                                       {"recompute", "#CC79A7"},
                                                                                       {"exchange", "#117733"},
                                                                                       {"gather", "#56B4E9"},
                                                                                       {"reduce", "#009E73"},
                                                                                       {"spread", "#88BB44"},
                                                                                       {"norm", "#333333"},
                                                                                       {"update", "#AA3377"},
                                                                                       {"publish", "#E69F00"}}};
  for (const auto& [verb, colour] : kColours) {
    if (title.starts_with(verb)) return colour;
  }
  return "#999999";
}

std::string verb_of(const Json& title) {
  const std::string text = title.get<std::string>();
  return text.substr(0, text.find(' '));
}

void draw_operations(Svg& svg, const Json& titles) {
  std::vector<std::string> verbs;
  for (const Json& title : titles) {
    const std::string verb = verb_of(title);
    if (verb != "release" && std::ranges::find(verbs, verb) == verbs.end()) verbs.push_back(verb);
  }
  double y = kTop + 10;
  for (const std::string& verb : verbs) {
    svg.rectangle({kWidth - kRight + 16, y - 9}, {10, 10}, fmt::format(R"(fill="{}")", verb_colour(verb)));
    svg.text({kWidth - kRight + 32, y}, verb, R"(font-size="11")");
    y += 15;
  }
}

/// The lanes that have operations, from top to bottom.
std::vector<std::string> lanes_of(const Json& lanes) {
  std::vector<std::string> used;
  for (const std::string_view lane : {"compute", "gather", "reduce", "exchange", "io"}) {
    if (std::ranges::any_of(lanes, [lane](const Json& one) { return one == lane; })) used.emplace_back(lane);
  }
  return used;
}

void draw_lane_frame(Svg& svg, const std::vector<std::string>& lanes, const Axis& x) {
  for (size_t lane = 0; lane < lanes.size(); ++lane)
    svg.text({kLeft - 8, kTop + kLaneRow * static_cast<double>(lane) + 16}, lanes[lane], R"(text-anchor="end")");
  const double bottom = kTop + static_cast<double>(lanes.size()) * kLaneRow + 8;
  for (const double tick : x.round_ticks(10)) {
    svg.line({x.at(tick), bottom}, {x.at(tick), bottom + 4}, R"(stroke="#333333")");
    svg.text({x.at(tick), bottom + 17}, tick_text(tick) + " ms", R"(text-anchor="middle" font-size="11")");
  }
  svg.line({kLeft, bottom}, {kWidth - kRight, bottom}, R"(stroke="#333333")");
}

}  // namespace

std::string step_memory_chart(const ReportRun& run) {
  const Json step = run.record.run.at("plan").value("step", Json());
  if (!step.is_object() || step.at("titles").empty()) return {};
  const std::vector<Layer> layers = layers_of(run.record.run);
  const size_t count = step.at("titles").size();
  std::vector<double> sum(count, 0.0);
  for (const Layer& layer : layers) {
    for (size_t i = 0; i < count; ++i) sum[i] += layer.bytes.at(i);
  }
  Svg svg(kWidth, kMemoryHeight, "Memory of one step of " + run.name);
  svg.text({kLeft, 20}, run.name, R"(font-weight="bold" font-size="13")");
  const Axis x(Axis::Scale::kEven, {0, static_cast<double>(count)}, {kLeft, kWidth - kRight});
  const Axis y(Axis::Scale::kEven, {0, 1.12 * *std::ranges::max_element(sum)}, {kMemoryHeight - kMemoryBottom, kTop});
  draw_memory_frame(svg, x, y, step.at("titles"));
  std::vector<double> below(count, 0.0);
  double label = kMemoryHeight - kMemoryBottom - 2;
  for (const Layer& layer : layers) {
    std::vector<double> above = below;
    for (size_t i = 0; i < count; ++i) above[i] += layer.bytes[i];
    const std::string fill = fmt::format(R"(fill="{}" fill-opacity="0.85")", category_colour(layer.category));
    svg.area(outline(below, above, x, y), fill, layer.category);
    svg.rectangle({kWidth - kRight + 16, label - 9}, {10, 10}, fill);
    svg.text({kWidth - kRight + 32, label}, layer.category, R"(font-size="11")");
    label -= 16;
    below = std::move(above);
  }
  draw_peak(svg, sum, x, y, step.at("titles"));
  return svg.finish();
}

std::string step_lanes_chart(const ReportRun& run) {
  const Json plan = run.record.run.at("plan").value("step", Json());
  if (!plan.is_object() || !run.record.done.is_object()) return {};
  const Json times = run.record.done.value("step", Json());
  if (!times.is_object() || times.at("start_seconds").size() != plan.at("titles").size()) return {};
  const std::vector<std::string> lanes = lanes_of(plan.at("lanes"));
  Svg svg(kWidth, std::max(kTop + kLaneRow * static_cast<double>(lanes.size()) + 46, 190.0),
          "Lanes of one step of " + run.name);
  svg.text({kLeft, 20},
           fmt::format("{}: one step of rank 0, {:.4g} ms; {:.0f} % of communication hidden", run.name,
                       1e3 * times.value("step_seconds", 0.0), 100 * times.value("hidden_share", 0.0)),
           R"(font-weight="bold" font-size="13")");
  const std::vector<double> starts = times.at("start_seconds"), ends = times.at("end_seconds");
  const Axis x(Axis::Scale::kEven, {1e3 * *std::ranges::min_element(starts), 1e3 * *std::ranges::max_element(ends)},
               {kLeft, kWidth - kRight});
  draw_lane_frame(svg, lanes, x);
  for (size_t i = 0; i < starts.size(); ++i) {
    const std::string title = plan.at("titles")[i].get<std::string>();
    if (title.starts_with("release")) continue;  // has no duration
    const auto lane = std::ranges::find(lanes, plan.at("lanes")[i].get<std::string>()) - lanes.begin();
    const double from = x.at(1e3 * starts[i]), to = x.at(1e3 * ends[i]);
    svg.rectangle(
        {from, kTop + kLaneRow * static_cast<double>(lane)}, {std::max(to - from, 0.4), kLaneBar},
        fmt::format(R"(fill="{}")", verb_colour(title)),
        fmt::format("{}: {:.4g} ms, starting at {:.4g} ms", title, 1e3 * (ends[i] - starts[i]), 1e3 * starts[i]));
  }
  draw_operations(svg, plan.at("titles"));
  return svg.finish();
}

}  // namespace aliquot
