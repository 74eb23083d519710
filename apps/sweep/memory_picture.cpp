#include "apps/sweep/memory_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <set>

#include "apps/drawing/axis.h"
#include "apps/drawing/svg.h"
#include "apps/train/reporting/memory_table.h"

namespace aliquot {
namespace {

// How the chart draws a ZeRO stage. Colour-blind readers can distinguish the colours, most of which are from the
// Okabe-Ito palette. The ZeRO stages also differ in marks and dashes.
struct StageStyle {
  std::string_view colour, dashes;
  Mark mark;
  double radius;  // smaller for higher ZeRO stages, so that all marks at one point are visible
};
constexpr std::array<StageStyle, 4> kStages = {
    StageStyle{"#0072B2", "none", Mark::kCircle, 6.5}, StageStyle{"#D55E00", "7 3", Mark::kSquare, 4.6},
    StageStyle{"#009E73", "2 2.5", Mark::kTriangle, 3.6}, StageStyle{"#AA3377", "9 3 2 3", Mark::kDiamond, 2.6}};

constexpr double kPanelWidth = 252, kPanelHeight = 264;  // size of the plot without labels
constexpr double kLeft = 66, kRight = 118, kTop = 88, kGap = 24, kBelow = 84, kFoot = 26;
constexpr size_t kPanelsInARow = 3;
constexpr std::string_view kGrey = R"(fill="#555555" font-size="11")";
constexpr double kLineHeight = 13, kLimitLetterWidth = 5.3;
// A linear axis includes the memory limit only if the limit is at most this factor times the highest planned value. A
// higher limit would compress the lines of planned memory, so the chart states it only as text.
constexpr double kVisibleLimitFactor = 1.25;

struct Panel {
  int64_t ranks = 0;
  std::vector<const SweepRow*> rows;  // only rows with a plan
  std::optional<int64_t> limit_bytes;
};

std::vector<Panel> panels_of(const std::vector<SweepRow>& rows) {
  std::map<int64_t, Panel> by_ranks;
  for (const SweepRow& row : rows) {
    if (!row.planned_peak_bytes) continue;
    Panel& panel = by_ranks[row.run.ranks];
    panel.ranks = row.run.ranks;
    panel.rows.push_back(&row);
    if (row.limit_bytes) panel.limit_bytes = row.limit_bytes;
  }
  std::vector<Panel> panels;
  for (auto& [ranks, panel] : by_ranks) {
    std::ranges::stable_sort(panel.rows, {}, &SweepRow::parameters);
    panels.push_back(std::move(panel));
  }
  return panels;
}

/// Returns the logarithmic scale if most models have less than a tenth of the parameters of the largest one. On linear
/// axes, their marks would overlap near zero.
Axis::Scale scale_for(const std::set<double>& parameters) {
  const double most = parameters.empty() ? 0 : *parameters.rbegin();
  const auto large = std::ranges::count_if(parameters, [most](double p) { return p >= most / 10; });
  return 2 * static_cast<size_t>(large) >= parameters.size() ? Axis::Scale::kEven : Axis::Scale::kLogarithmic;
}

class Picture {
 public:
  Picture(const std::vector<SweepRow>& rows, const std::string& below);
  std::string draw();

 private:
  void draw_head(const std::string& below);
  void draw_panel(const Panel& panel, Point corner, bool is_first);
  void draw_frame(const Axis& x, const Axis& y, bool with_bytes);
  void draw_models(const Panel& panel, const Axis& x, const Axis& y);
  void draw_limit(const Panel& panel, const Axis& x, const Axis& y);
  void draw_stage(const Panel& panel, int stage, const Axis& x, const Axis& y);
  void draw_labels(const Panel& panel, const Axis& x, const Axis& y);
  double panel_x(size_t column) const { return kLeft + static_cast<double>(column) * (kPanelWidth + kRight + kGap); }

  std::vector<Panel> panels_;
  Axis::Scale scale_ = Axis::Scale::kEven;
  Span parameters_{0, 1}, bytes_{0, 1};
  std::optional<Svg> svg_;
};

Picture::Picture(const std::vector<SweepRow>& rows, const std::string& below) : panels_(panels_of(rows)) {
  std::set<double> parameters, bytes, limits;
  for (const Panel& panel : panels_) {
    for (const SweepRow* row : panel.rows) {
      parameters.insert(static_cast<double>(row->parameters));
      bytes.insert(static_cast<double>(*row->planned_peak_bytes));
    }
    if (panel.limit_bytes) limits.insert(static_cast<double>(*panel.limit_bytes));
  }
  scale_ = scale_for(parameters);
  if (scale_ == Axis::Scale::kLogarithmic) {
    bytes.merge(limits);
    parameters_ = {*parameters.begin() / 1.6, *parameters.rbegin() * 1.6};
    bytes_ = {*bytes.begin() / 1.5, *bytes.rbegin() * 1.5};
  } else if (!bytes.empty()) {
    const double most = *bytes.rbegin();
    for (const double limit : limits) bytes.insert(std::min(limit, kVisibleLimitFactor * most));
    parameters_ = {0, *parameters.rbegin() * 1.06};
    bytes_ = {0, *bytes.rbegin() * 1.08};
  }
  const size_t columns = std::clamp<size_t>(panels_.size(), 1, kPanelsInARow);
  const size_t lines = std::max<size_t>((panels_.size() + kPanelsInARow - 1) / kPanelsInARow, 1);
  const double width = std::max(panel_x(columns) - kGap, 620.0);
  const double height = kTop + static_cast<double>(lines) * (kPanelHeight + kBelow) + kFoot;
  svg_.emplace(width, height, "Memory per rank against model size");
  draw_head(below);
}

void Picture::draw_head(const std::string& below) {
  svg_->text({16, 26}, "Memory per rank against model size", R"(font-size="17" font-weight="bold")");
  svg_->text({16, 45}, below, kGrey);
}

std::string Picture::draw() {
  if (panels_.empty()) svg_->text({16, 80}, "No run was planned. The reasons are in sweep.csv.", kGrey);
  size_t line = 0;
  for (size_t p = 0; p < panels_.size(); ++p) {
    line = p / kPanelsInARow;
    const Point corner = {panel_x(p % kPanelsInARow), kTop + static_cast<double>(line) * (kPanelHeight + kBelow)};
    draw_panel(panels_[p], corner, p % kPanelsInARow == 0);
  }
  const double foot = kTop + static_cast<double>(line + 1) * (kPanelHeight + kBelow);
  svg_->text({16, foot + 12},
             "Lines: planned before the run.  Marks: measured.  Crosses: run failed (the reason is in sweep.csv).",
             kGrey);
  return svg_->finish();
}

void Picture::draw_panel(const Panel& panel, Point corner, bool is_first) {
  const Axis x(scale_, parameters_, {corner.x, corner.x + kPanelWidth});
  const Axis y(scale_, bytes_, {corner.y + kPanelHeight, corner.y});
  svg_->text({corner.x, corner.y - 10}, fmt::format("{} rank{}", panel.ranks, panel.ranks == 1 ? "" : "s"),
             R"(font-size="13" font-weight="bold")");
  draw_frame(x, y, is_first);
  draw_models(panel, x, y);
  for (int stage = 0; stage < 4; ++stage) draw_stage(panel, stage, x, y);
  draw_limit(panel, x, y);
  draw_labels(panel, x, y);
}

/// Returns ticks at round numbers of KiB, MiB and so on, or at powers of two if the scale is logarithmic.
std::vector<double> byte_ticks(const Axis& y, Axis::Scale scale) {
  if (scale == Axis::Scale::kLogarithmic) return y.power_ticks(2, 8);
  double unit = 1;
  while (y.values().to >= 1024 * unit) unit *= 1024;
  std::vector<double> ticks = Axis(scale, {0, y.values().to / unit}, {0, 1}).round_ticks(7);
  for (double& tick : ticks) tick *= unit;
  return ticks;
}

void Picture::draw_frame(const Axis& x, const Axis& y, bool with_bytes) {
  const double left = x.at(parameters_.from), right = x.at(parameters_.to);
  const double bottom = y.at(bytes_.from), top = y.at(bytes_.to);
  for (const double tick : byte_ticks(y, scale_)) {
    svg_->line({left, y.at(tick)}, {right, y.at(tick)}, R"(stroke="#e4e4e4")");
    if (with_bytes)
      svg_->text({left - 7, y.at(tick) + 4}, tick_bytes_text(tick), R"(text-anchor="end" font-size="11")");
  }
  for (const double tick : scale_ == Axis::Scale::kEven ? x.round_ticks(5) : x.power_ticks(10, 6)) {
    svg_->line({x.at(tick), bottom}, {x.at(tick), bottom + 5}, R"(stroke="#333333")");
    svg_->text({x.at(tick), bottom + 18}, count_text(tick), R"(text-anchor="middle" font-size="11")");
  }
  svg_->line({left, bottom}, {right, bottom}, R"(stroke="#333333")");
  svg_->line({left, bottom}, {left, top}, R"(stroke="#333333")");
  svg_->text({(left + right) / 2, bottom + 62}, "parameters", R"(text-anchor="middle")");
}

/// Writes the names of the models under the axis, in two lines if they would overlap in one. Omits a name that would
/// overlap in both lines.
void Picture::draw_models(const Panel& panel, const Axis& x, const Axis& y) {
  std::map<int64_t, std::string> models;
  for (const SweepRow* row : panel.rows) models[row->parameters] = row->run.model;
  const double bottom = y.at(bytes_.from);
  double ends[2] = {-1e9, -1e9};
  for (const auto& [parameters, model] : models) {
    const double at = x.at(static_cast<double>(parameters)), half = 2.8 * static_cast<double>(model.size());
    const int line = at - half > ends[0] ? 0 : 1;
    if (line == 1 && at - half <= ends[1]) continue;
    ends[line] = at + half;
    svg_->line({at, bottom}, {at, y.at(bytes_.to)}, R"(stroke="#dddddd" stroke-dasharray="1 3")");
    svg_->text({at, bottom + 32 + 12 * line}, model, R"(text-anchor="middle" fill="#666666" font-size="10")");
  }
}

/// The positions of the planned values of a ZeRO stage, from the smallest model to the largest.
std::vector<Point> planned_points(const Panel& panel, int stage, const Axis& x, const Axis& y) {
  std::vector<Point> points;
  for (const SweepRow* row : panel.rows) {
    if (row->run.zero_stage != stage) continue;
    points.push_back({x.at(static_cast<double>(row->parameters)), y.at(static_cast<double>(*row->planned_peak_bytes))});
  }
  return points;
}

/// The length of the lines of planned memory inside a box, in steps of a pixel.
int hidden_length(const Panel& panel, const Axis& x, const Axis& y, Point corner, Point size) {
  int hidden = 0;
  for (int stage = 0; stage < 4; ++stage) {
    const std::vector<Point> points = planned_points(panel, stage, x, y);
    for (size_t i = 1; i < points.size(); ++i) {
      const Point from = points[i - 1], to = points[i];
      const int steps = static_cast<int>(std::hypot(to.x - from.x, to.y - from.y)) + 1;
      for (int s = 0; s <= steps; ++s) {
        const double share = static_cast<double>(s) / steps;
        const Point at = {from.x + share * (to.x - from.x), from.y + share * (to.y - from.y)};
        hidden += at.x >= corner.x && at.x <= corner.x + size.x && at.y >= corner.y && at.y <= corner.y + size.y;
      }
    }
  }
  return hidden;
}

/// Writes the limit above or below its line, where it hides less of the other lines.
void Picture::draw_limit(const Panel& panel, const Axis& x, const Axis& y) {
  if (!panel.limit_bytes) return;
  const double bytes = static_cast<double>(*panel.limit_bytes), left = x.at(parameters_.from);
  const double right = x.at(parameters_.to), top = y.at(bytes_.to), bottom = y.at(bytes_.from);
  const bool in_sight = bytes <= bytes_.to;
  const double at = y.at(std::min(bytes, bytes_.to));
  if (in_sight) svg_->line({left, at}, {right, at}, R"(stroke="black" stroke-width="1.4")");
  const std::string text = fmt::format("machine memory per rank: {}{}", format_bytes(*panel.limit_bytes),
                                       in_sight ? "" : " (above this chart)");
  const Point size = {kLimitLetterWidth * static_cast<double>(text.size()), kLineHeight};
  int least = std::numeric_limits<int>::max();
  Point best{left + 6, at + kLineHeight};
  for (const double place : {at - 5, at + kLineHeight}) {
    if (place - kLineHeight < top || place > bottom) continue;
    const int hidden = hidden_length(panel, x, y, {left + 6, place - size.y + 2}, size);
    if (hidden < least) best.y = place;
    least = std::min(least, hidden);
  }
  svg_->text(best, text, R"(font-size="10.5" stroke="white" stroke-width="3" paint-order="stroke")");
}

std::string point_text(const SweepRow& row) {
  return fmt::format("{}, ZeRO stage {}, {} rank{}: planned {}, {}", row.run.model, row.run.zero_stage, row.run.ranks,
                     row.run.ranks == 1 ? "" : "s", format_bytes(*row.planned_peak_bytes),
                     row.measured_peak_bytes ? "measured " + format_bytes(*row.measured_peak_bytes) : row.status);
}

void Picture::draw_stage(const Panel& panel, int stage, const Axis& x, const Axis& y) {
  const StageStyle& style = kStages[static_cast<size_t>(stage)];
  svg_->path(planned_points(panel, stage, x, y),
             fmt::format(R"(stroke="{}" stroke-width="1.7" stroke-dasharray="{}")", style.colour, style.dashes));
  for (const SweepRow* row : panel.rows) {
    if (row->run.zero_stage != stage) continue;
    const double at = x.at(static_cast<double>(row->parameters));
    if (row->ok()) {
      svg_->mark(style.mark, {at, y.at(static_cast<double>(*row->measured_peak_bytes))}, style.radius,
                 fmt::format(R"(fill="{}" stroke="white" stroke-width="0.8")", style.colour), point_text(*row));
    } else {
      svg_->mark(Mark::kCross, {at, y.at(static_cast<double>(*row->planned_peak_bytes))}, 4.5,
                 fmt::format(R"(stroke="{}" stroke-width="2.2" fill="none")", style.colour), point_text(*row));
    }
  }
}

/// Writes the ZeRO stage and the last planned value at the end of each line. Moves labels apart where they would
/// overlap.
void Picture::draw_labels(const Panel& panel, const Axis& x, const Axis& y) {
  struct Label {
    double at;
    int stage;
    int64_t bytes;
  };
  std::vector<Label> labels;
  for (int stage = 0; stage < 4; ++stage) {
    const SweepRow* last = nullptr;
    for (const SweepRow* row : panel.rows) last = row->run.zero_stage == stage ? row : last;
    if (last != nullptr)
      labels.push_back({y.at(static_cast<double>(*last->planned_peak_bytes)), stage, *last->planned_peak_bytes});
  }
  std::ranges::stable_sort(labels, {}, &Label::at);
  // Moves labels down where they overlap. Then moves all labels up if the last one is below the chart.
  for (size_t i = 1; i < labels.size(); ++i) labels[i].at = std::max(labels[i].at, labels[i - 1].at + kLineHeight);
  const double over = labels.empty() ? 0 : std::max(0.0, labels.back().at - y.at(bytes_.from));
  for (Label& label : labels) label.at -= over;
  const double end = x.at(parameters_.to);
  for (const Label& label : labels) {
    const StageStyle& style = kStages[static_cast<size_t>(label.stage)];
    svg_->mark(style.mark, {end + 10, label.at}, 3.4, fmt::format(R"(fill="{}")", style.colour));
    const std::string colour = fmt::format(R"(fill="{}" font-size="11.5")", style.colour);
    svg_->text({end + 18, label.at + 4}, fmt::format("ZeRO {}", label.stage), colour);
    svg_->text({end + 64, label.at + 4}, format_bytes(label.bytes), colour);
  }
}

}  // namespace

std::string memory_picture(const std::vector<SweepRow>& rows, const std::string& below) {
  return Picture(rows, below).draw();
}

}  // namespace aliquot
