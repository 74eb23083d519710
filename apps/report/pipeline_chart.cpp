#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <set>

#include "apps/drawing/axis.h"
#include "apps/drawing/svg.h"
#include "apps/report/charts.h"

namespace aliquot {
namespace {

constexpr double kWidth = 980, kLeft = 74, kRight = 62, kTop = 64, kBottom = 62;
constexpr double kMinRow = 9, kMaxRow = 30, kAllRows = 420;  // limits of the height of a row, and of all rows
constexpr std::string_view kIdleColour = "#E4E4E4";

/// The positions and sizes that all boxes of a drawing share.
struct Frame {
  Axis x;           // the time axis, in seconds
  double row, bar;  // the heights of a row and of a box
  double bottom;    // the lower end of the last row

  double top(std::size_t stage) const { return kTop + row * static_cast<double>(stage); }
};

Span shown_span(const Json& pipeline) {
  Span span = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const Json& stage : pipeline.at("stages")) {
    const double begin = stage.at("begin_seconds"), end = begin + stage.at("step_seconds").get<double>();
    span = {std::min(span.from, begin), std::max(span.to, end)};
    if (stage.at("passes").empty()) continue;
    span.from = std::min(span.from, std::ranges::min(stage.at("start_seconds").get<std::vector<double>>()));
    span.to = std::max(span.to, std::ranges::max(stage.at("end_seconds").get<std::vector<double>>()));
  }
  return span;
}

Frame frame_of(const Json& pipeline, double axis_seconds) {
  const Span shown = shown_span(pipeline);
  const auto stages = static_cast<double>(pipeline.at("stages").size());
  const double row = std::clamp(kAllRows / stages, kMinRow, kMaxRow);
  return {.x = Axis(Axis::Scale::kEven, {shown.from, std::max(shown.to, shown.from + axis_seconds)},
                    {kLeft, kWidth - kRight}),
          .row = row,
          .bar = row < 16 ? row - 1 : row - 4,
          .bottom = kTop + row * stages};
}

/// The position of a virtual stage among those of its pipeline stage. The virtual stage of tied ends has position 0.
int shade_of(const Json& pipeline, int virtual_stage) {
  const int count = static_cast<int>(pipeline.at("stages").size());
  return std::max(0, virtual_stage - (pipeline.at("tied_ends").get<bool>() ? 1 : 0)) / count;
}

std::string fill_of(const Json& pipeline, const std::string& pass, int virtual_stage) {
  const int shades = std::max(pipeline.at("virtual_stages").get<int>(), 1);
  const double part = 0.6 * std::min(shade_of(pipeline, virtual_stage), shades - 1) / std::max(shades - 1, 1);
  return lighter(verb_colour(pass), part);
}

std::string tip_of(const Json& pipeline, const Json& stage, std::size_t i) {
  const double start = stage.at("start_seconds").at(i), end = stage.at("end_seconds").at(i);
  std::string text = stage.at("passes").at(i).get<std::string>();
  if (const int micro_batch = stage.at("micro_batch").at(i); micro_batch >= 0)
    text += fmt::format(", micro-batch {}", micro_batch);
  if (const int virtual_stage = stage.at("virtual_stage").at(i);
      virtual_stage >= 0 && pipeline.at("virtual_stages").get<int>() > 1)
    text += fmt::format(", virtual stage {}", virtual_stage);
  return text + fmt::format(": {:.4g} ms, starting at {:.4g} ms", 1e3 * (end - start), 1e3 * start);
}

/// The horizontal extent of a box.
struct Extent {
  double from, to;
  double width() const { return to - from; }
};

/// The largest font for numbers of micro-batches that fits in a row. Below 7, no numbers are drawn.
double number_font(const Frame& frame) { return std::min(11.0, frame.bar - 1); }

bool number_fits(const Frame& frame, const Extent& box, int micro_batch) {
  const auto digits = static_cast<double>(fmt::format("{}", micro_batch).size());
  return number_font(frame) >= 7 && 0.58 * number_font(frame) * digits + 2 <= box.width();
}

/// Consecutive boxes [first, end) of one pass of one micro-batch. Recompute belongs to the backward pass.
struct PassBoxes {
  std::size_t first, end;
};

bool same_pass(const Json& stage, std::size_t a, std::size_t b) {
  const auto name_of = [&](std::size_t i) {
    const std::string pass = stage.at("passes").at(i);
    return pass == "forward" || pass == "backward-weights" ? pass : "";
  };
  return stage.at("micro_batch").at(a) == stage.at("micro_batch").at(b) &&
         stage.at("virtual_stage").at(a) == stage.at("virtual_stage").at(b) && name_of(a) == name_of(b);
}

Extent extent_of(const Frame& frame, const Json& stage, std::size_t i) {
  const double from = frame.x.at(stage.at("start_seconds").at(i).get<double>());
  return {from, std::max(from + 0.3, frame.x.at(stage.at("end_seconds").at(i).get<double>()))};
}

/// Draws the number of the micro-batch in the widest box if it fits there. Otherwise draws it in the middle of the
/// whole pass, if it fits there and the boxes are close together.
void draw_number(Svg& svg, const Frame& frame, const Json& pipeline, std::size_t s, PassBoxes boxes) {
  const Json& stage = pipeline.at("stages").at(s);
  const int micro_batch = stage.at("micro_batch").at(boxes.first);
  if (micro_batch < 0) return;
  std::size_t widest = boxes.first;
  double covered = 0;
  for (std::size_t i = boxes.first; i < boxes.end; ++i) {
    covered += extent_of(frame, stage, i).width();
    if (extent_of(frame, stage, i).width() > extent_of(frame, stage, widest).width() + 0.1) widest = i;
  }
  Extent extent = extent_of(frame, stage, widest);
  if (!number_fits(frame, extent, micro_batch))
    extent = {extent_of(frame, stage, boxes.first).from, extent_of(frame, stage, boxes.end - 1).to};
  constexpr double kClose = 0.9;
  if (!number_fits(frame, extent, micro_batch) || covered < kClose * extent.width()) return;
  const std::string fill =
      fill_of(pipeline, stage.at("passes").at(widest), stage.at("virtual_stage").at(widest).get<int>());
  svg.text(
      {extent.from + extent.width() / 2, frame.top(s) + frame.bar / 2 + 0.36 * number_font(frame)},
      fmt::format("{}", micro_batch),
      fmt::format(R"(text-anchor="middle" font-size="{:.1f}" fill="{}")", number_font(frame), text_colour_on(fill)));
}

void draw_passes(Svg& svg, const Frame& frame, const Json& pipeline, std::size_t s) {
  const Json& stage = pipeline.at("stages").at(s);
  const std::size_t count = stage.at("passes").size();
  for (std::size_t i = 0, first = 0; i < count; ++i) {
    const Extent box = extent_of(frame, stage, i);
    const std::string fill = fill_of(pipeline, stage.at("passes").at(i), stage.at("virtual_stage").at(i).get<int>());
    // A thin white line separates boxes, unless they are narrow.
    const std::string style = box.width() > 2 ? fmt::format(R"(fill="{}" stroke="white" stroke-width="0.5")", fill)
                                              : fmt::format(R"(fill="{}")", fill);
    svg.rectangle({box.from, frame.top(s)}, {box.width(), frame.bar}, style, tip_of(pipeline, stage, i));
    if (i + 1 < count && same_pass(stage, i, i + 1)) continue;
    draw_number(svg, frame, pipeline, s, {first, i + 1});
    first = i + 1;
  }
}

void draw_row(Svg& svg, const Frame& frame, const Json& pipeline, std::size_t s) {
  const Json& stage = pipeline.at("stages").at(s);
  const double begin = stage.at("begin_seconds"), end = begin + stage.at("step_seconds").get<double>();
  const double share = stage.at("bubble_share"), from = frame.x.at(begin);
  svg.rectangle({from, frame.top(s)}, {std::max(frame.x.at(end) - from, 0.3), frame.bar},
                fmt::format(R"(fill="{}")", kIdleColour),
                fmt::format("pipeline stage {}: idle in {:.1f} % of the step", s, 100 * share));
  draw_passes(svg, frame, pipeline, s);
  const auto every = static_cast<std::size_t>(std::ceil(12 / frame.row));
  if (s % every != 0) return;
  const double y = frame.top(s) + frame.bar / 2 + 4;
  svg.text({kLeft - 8, y}, fmt::format("{}", s), R"(text-anchor="end" font-size="11")");
  svg.text({kWidth - 8, y}, fmt::format("{:.1f} %", 100 * share), R"(text-anchor="end" font-size="11")");
}

void draw_axis(Svg& svg, const Frame& frame) {
  const double y = frame.bottom + 4;
  const bool in_seconds = frame.x.values().to >= 5;
  for (const double tick : frame.x.round_ticks(10)) {
    svg.line({frame.x.at(tick), y}, {frame.x.at(tick), y + 4}, R"(stroke="#333333")");
    svg.text({frame.x.at(tick), y + 17}, in_seconds ? tick_text(tick) + " s" : tick_text(1e3 * tick) + " ms",
             R"(text-anchor="middle" font-size="11")");
  }
  svg.line({kLeft, y}, {kWidth - kRight, y}, R"(stroke="#333333")");
}

/// Draws the legend: the colours of the passes that occur and of idle time, then the shades of virtual stages.
void draw_legend(Svg& svg, const Frame& frame, const Json& pipeline) {
  std::vector<std::string> passes = {"forward",          "backward",  "backward-input",
                                     "backward-weights", "recompute", "update"};
  std::set<std::string> present;
  for (const Json& stage : pipeline.at("stages")) {
    for (const std::string pass : stage.at("passes")) {
      if (present.insert(pass).second && std::ranges::find(passes, pass) == passes.end()) passes.push_back(pass);
    }
  }
  std::erase_if(passes, [&](const std::string& pass) { return !present.contains(pass); });
  double x = kLeft;
  const double y = frame.bottom + kBottom - 16;
  const auto entry = [&](const std::string& fill, const std::string& text) {
    svg.rectangle({x, y}, {10, 10}, fmt::format(R"(fill="{}")", fill));
    svg.text({x + 15, y + 9}, text, R"(font-size="11")");
    x += 30 + 6 * static_cast<double>(text.size());
  };
  for (const std::string& pass : passes) entry(std::string(verb_colour(pass)), pass);
  entry(std::string(kIdleColour), "idle");
  const int shades = pipeline.at("virtual_stages");
  if (shades < 2) return;
  for (const int shade : std::set<int>{0, shades - 1}) {
    const double part = 0.6 * shade / (shades - 1);
    entry(lighter(verb_colour("forward"), part), shade == 0 ? "first virtual stage" : "last virtual stage");
  }
}

std::string shape_text(const Json& pipeline) {
  const int shades = pipeline.at("virtual_stages");
  return fmt::format("{}, {} pipeline stages{}, {} micro-batches; bubble {:.1f} %",
                     pipeline.at("order").get<std::string>(), pipeline.at("stages").size(),
                     shades > 1 ? fmt::format(" with {} virtual stages each", shades) : "",
                     pipeline.at("micro_batches").get<int>(), 100 * pipeline.at("bubble_share").get<double>());
}

/// The pipeline of a run; null if it has none or recorded none.
Json pipeline_of(const ReportRun& run) {
  return run.record.done.is_object() ? run.record.done.value("pipeline", Json()) : Json();
}

bool has_pipeline(const ReportRun& run) {
  const Json stages = run.record.run.at("options").value("pipeline", Json(1));
  return stages.is_number() ? stages.get<double>() > 1 : stages.is_string() && stages != "1";
}

std::string note(const std::string& name, const std::string& text) {
  return fmt::format("<p class=\"note\">{}: {}</p>\n", escaped(name), text);
}

}  // namespace

double shown_seconds(const Json& pipeline) {
  const Span shown = shown_span(pipeline);
  return shown.to - shown.from;
}

std::string pipeline_chart(const PipelineStep& step, double axis_seconds) {
  const Json& pipeline = step.pipeline;
  if (pipeline.at("stages").empty()) return {};
  const Frame frame = frame_of(pipeline, axis_seconds);
  Svg svg(kWidth, frame.bottom + kBottom, "Pipeline of " + step.heading);
  svg.text({kLeft, 16}, step.heading, R"(font-weight="bold" font-size="13")");
  svg.text({kLeft, 34}, shape_text(pipeline), "");
  svg.text({8, kTop - 8}, "pipeline stage", R"(font-size="11" fill="#555555")");
  svg.text({kWidth - 8, kTop - 8}, "bubble", R"(text-anchor="end" font-size="11" fill="#555555")");
  for (std::size_t s = 0; s < pipeline.at("stages").size(); ++s) draw_row(svg, frame, pipeline, s);
  draw_axis(svg, frame);
  draw_legend(svg, frame, pipeline);
  return svg.finish();
}

std::string pipeline_section(const std::vector<ReportRun>& runs, const std::vector<ReportPlan>& plans) {
  std::vector<PipelineStep> steps;
  std::string notes;
  for (const ReportRun& run : runs) {
    if (const Json pipeline = pipeline_of(run); pipeline.is_object()) {
      steps.push_back({run.name + ", one measured step", pipeline});
    } else if (has_pipeline(run)) {
      notes += note(run.name,
                    "no pipeline was recorded: this requires a finished run of at least three steps, and at most "
                    "10,000 passes in a step.");
    }
  }
  for (const ReportPlan& plan : plans) {
    if (const Json pipeline = plan.plan.value("pipeline", Json()); pipeline.is_object())
      steps.push_back({plan.name + ", one simulated step", pipeline});
  }
  if (steps.empty() && notes.empty()) return {};
  double longest = 0;
  for (const PipelineStep& step : steps) longest = std::max(longest, shown_seconds(step.pipeline));
  std::string text = "<h2>Pipeline of one step</h2>\n";
  for (const PipelineStep& step : steps) {
    // Drawings have a common time axis, unless they would become too small.
    constexpr double kMaxRatio = 3;
    const bool comparable = longest <= kMaxRatio * shown_seconds(step.pipeline);
    text += pipeline_chart(step, comparable ? longest : 0);
  }
  return text + notes +
         "<p class=\"note\">A box is a pass, with the number of its micro-batch if there is space. bubble: the part of "
         "the step in which the compute lane is idle.</p>\n";
}

}  // namespace aliquot
