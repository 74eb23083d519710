#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "apps/drawing/axis.h"
#include "apps/drawing/svg.h"
#include "apps/report/charts.h"

namespace aliquot {
namespace {

constexpr double kWidth = 480, kHeight = 250, kLeft = 58, kRight = 14, kTop = 34, kBottom = 36;
constexpr size_t kMostPoints = 1000;
constexpr double kLogarithmicRatio = 200;  // the axis is logarithmic if maximum / minimum is larger than this

struct Sample {
  double step, value;
};
using Piece = std::vector<Sample>;  // consecutive samples without a gap

std::vector<Piece> pieces_of(const ReportRun& run, const Curve& curve) {
  std::vector<Piece> pieces(1);
  for (const Json& step : run.record.steps) {
    const auto found = step.find(curve.field);
    if (found != step.end() && found->is_number()) {
      pieces.back().push_back({step.at("step").get<double>(), found->get<double>()});
    } else if (!curve.marks && !pieces.back().empty()) {
      pieces.emplace_back();
    }
  }
  if (pieces.back().empty()) pieces.pop_back();
  return pieces;
}

/// Reduces consecutive samples to about kMostPoints: the minimum and the maximum of each interval, in their order.
Piece thinned(const Piece& piece) {
  if (piece.size() <= kMostPoints) return piece;
  const size_t stretch = (2 * piece.size() + kMostPoints - 1) / kMostPoints;
  Piece result;
  for (size_t from = 0; from < piece.size(); from += stretch) {
    const auto begin = piece.begin() + static_cast<ptrdiff_t>(from);
    const auto end = piece.begin() + static_cast<ptrdiff_t>(std::min(from + stretch, piece.size()));
    const auto [least, most] = std::minmax_element(begin, end, [](auto& a, auto& b) { return a.value < b.value; });
    result.push_back(*std::min(least, most));
    if (least != most) result.push_back(*std::max(least, most));
  }
  return result;
}

struct Range {
  double first = std::numeric_limits<double>::infinity(), last = -first;
  double least = first, most = -first;

  void include(const Sample& sample) {
    first = std::min(first, sample.step);
    last = std::max(last, sample.step);
    least = std::min(least, sample.value);
    most = std::max(most, sample.value);
  }
};

Axis value_axis(const Curve& curve, const Range& range) {
  const Span places = {kHeight - kBottom, kTop};
  if (range.least > 0 && range.most > kLogarithmicRatio * range.least)
    return {Axis::Scale::kLogarithmic, {range.least / 1.3, range.most * 1.3}, places};
  const double air = 0.06 * (range.most - range.least);
  return {
      Axis::Scale::kEven, {curve.from_zero ? std::min(0.0, range.least) : range.least - air, range.most + air}, places};
}

void draw_frame(Svg& svg, const Axis& x, const Axis& y, bool logarithmic) {
  const double left = kLeft, right = kWidth - kRight, bottom = kHeight - kBottom;
  for (const double tick : logarithmic ? y.power_ticks(10, 6) : y.round_ticks(5)) {
    svg.line({left, y.at(tick)}, {right, y.at(tick)}, R"(stroke="#e4e4e4")");
    svg.text({left - 6, y.at(tick) + 4}, tick_text(tick), R"(text-anchor="end" font-size="11")");
  }
  for (const double tick : x.round_ticks(6)) {
    if (tick != std::floor(tick)) continue;  // steps are integers
    svg.line({x.at(tick), bottom}, {x.at(tick), bottom + 4}, R"(stroke="#333333")");
    svg.text({x.at(tick), bottom + 17}, tick_text(tick), R"(text-anchor="middle" font-size="11")");
  }
  svg.line({left, bottom}, {right, bottom}, R"(stroke="#333333")");
  svg.line({left, bottom}, {left, kTop}, R"(stroke="#333333")");
  svg.text({right, bottom + 31}, "step", R"(text-anchor="end" font-size="11" fill="#555555")");
}

void draw_run(Svg& svg, const Curve& curve, const ReportRun& run, const Axis& x, const Axis& y) {
  for (const Piece& piece : pieces_of(run, curve)) {
    std::vector<Point> points;
    for (const Sample& sample : thinned(piece)) points.push_back({x.at(sample.step), y.at(sample.value)});
    svg.path(points,
             fmt::format(R"(stroke="{}" stroke-width="1.6" stroke-dasharray="{}" data-series="{}" data-run="{}")",
                         run.colour, run.dashes, curve.field, escaped(run.name)));
    if (!curve.marks && points.size() > 1) continue;
    for (size_t i = 0; i < points.size(); ++i)
      svg.mark(Mark::kCircle, points[i], 3, fmt::format(R"(fill="{}")", run.colour));
  }
}

}  // namespace

bool has_figure(const std::string& field, const std::vector<ReportRun>& runs) {
  for (const ReportRun& run : runs) {
    for (const Json& step : run.record.steps) {
      if (step.contains(field) && step[field].is_number()) return true;
    }
  }
  return false;
}

std::string curve_chart(const Curve& curve, const std::vector<ReportRun>& runs) {
  Range range;
  for (const ReportRun& run : runs) {
    for (const Piece& piece : pieces_of(run, curve)) {
      for (const Sample& sample : piece) range.include(sample);
    }
  }
  Svg svg(kWidth, kHeight, curve.title + " over steps");
  svg.text({kLeft, 20}, curve.title, R"(font-weight="bold" font-size="13")");
  if (range.first > range.last) {
    svg.text({kLeft, 60}, "no data", R"(fill="#555555")");
    return svg.finish();
  }
  const Axis x(Axis::Scale::kEven, {range.first, range.last}, {kLeft, kWidth - kRight});
  const Axis y = value_axis(curve, range);
  draw_frame(svg, x, y, range.least > 0 && range.most > kLogarithmicRatio * range.least);
  for (const ReportRun& run : runs) draw_run(svg, curve, run, x, y);
  return svg.finish();
}

}  // namespace aliquot
