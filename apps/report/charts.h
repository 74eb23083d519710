#pragma once
// The charts and tables of the page that aliquot report writes.

#include <string>
#include <string_view>
#include <vector>

#include "apps/metrics/run_record.h"

namespace aliquot {

struct ReportRun {
  std::string name;  // name of the metrics file without its extension, or its path if two runs have the same name
  RunRecord record;
  std::string_view colour, dashes;  // style of the run's lines
};

/// A plan that aliquot plan --metrics wrote.
struct ReportPlan {
  std::string name;  // like ReportRun::name, followed by the ZeRO stage if the file has several plans
  Json plan;
};

/// An SVG with two bars, planned and measured, for each memory category and for the peak. A run that did not finish has
/// no measured bars.
std::string memory_bars(const ReportRun& run);

/// The colour of an operation, from its verb, or from a title that begins with the verb. Gray for other verbs.
std::string_view verb_colour(std::string_view title);

/// `colour` (#rrggbb) mixed with white. `part` is the part of white.
std::string lighter(std::string_view colour, double part);
/// Black or white, whichever is easier to read on `colour` (#rrggbb).
std::string_view text_colour_on(std::string_view colour);

/// The colour of a memory category. The palette is safe for colour-blind readers.
std::string_view category_colour(std::string_view category);

/// One metric over the steps of all runs.
struct Curve {
  std::string title;
  std::string field;       // key in the record of a step
  bool from_zero = false;  // whether the vertical axis begins at zero
  bool marks = false;      // whether to draw points too, for metrics that only some steps have
};
/// An SVG with a line for each run. The line has a gap at steps without the metric or with a value that is not finite.
/// With `marks`, the line continues across these steps. If a run has more than about 1000 steps, the line shows the
/// minimum and the maximum of each interval of steps.
std::string curve_chart(const Curve& curve, const std::vector<ReportRun>& runs);

/// Whether any step of any run has the metric.
bool has_figure(const std::string& field, const std::vector<ReportRun>& runs);

/// Returns a table of the run's last straggler report. Returns "" if there is no report, or if the run had one rank.
std::string rank_table(const ReportRun& run);

/// Returns an SVG of the bytes in use at each operation, stacked by category, or "" if the record has no operations.
std::string step_memory_chart(const ReportRun& run);

/// The result of pipeline_json(), and a heading for its drawing.
struct PipelineStep {
  std::string heading;
  Json pipeline;
};
/// Returns an SVG of the passes of all pipeline stages over time. Each pipeline stage has a row, and idle time is
/// gray. Boxes that are wide enough show the number of the micro-batch. The time axis is at least `axis_seconds` long.
std::string pipeline_chart(const PipelineStep& step, double axis_seconds);
/// Returns the time, in seconds, that the drawing of the pipeline shows.
double shown_seconds(const Json& pipeline);

/// Returns a section with the pipeline_chart() of each run and plan that has a pipeline, or "" if none has one.
std::string pipeline_section(const std::vector<ReportRun>& runs, const std::vector<ReportPlan>& plans);

/// Returns a section with a table of the plans, or "" if there are none.
std::string plan_section(const std::vector<ReportPlan>& plans);

/// Returns an SVG of the operations of each lane over time, for the step that was timed, or "" if no step was timed.
std::string step_lanes_chart(const ReportRun& run);

}  // namespace aliquot
