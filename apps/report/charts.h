#pragma once
// A run as the page of aliquot report shows it, and the charts and tables of the page.

#include <string>
#include <string_view>
#include <vector>

#include "apps/metrics/run_record.h"

namespace aliquot {

struct ReportRun {
  std::string name;  // the file's, without what all share
  RunRecord record;
  std::string_view colour, dashes;
};

/// An SVG: two bars a category, and two for the peak of the sum. What a run did not come to measure is left out.
std::string memory_bars(const ReportRun& run);

/// Colour of a category of memory, by its name, told apart by colour-blind eyes.
std::string_view category_colour(std::string_view category);

/// One figure of every step, of all runs, over steps: an SVG. Steps without it (not finite, or not evaluated) leave a gap.
/// Where there are more steps than anybody sees apart, each place shows the least and the most of those that fall on it.
struct Curve {
  std::string title;
  std::string field;       // of a step's line
  bool from_zero = false;  // the axis begins there
  bool marks = false;      // as points: few, far apart
};
std::string curve_chart(const Curve& curve, const std::vector<ReportRun>& runs);

/// Whether any step of any run has the figure.
bool has_figure(const std::string& field, const std::vector<ReportRun>& runs);

/// A table of the run's last report of stragglers; empty where its record has none, or of one rank alone.
std::string rank_table(const ReportRun& run);

/// An SVG of the bytes in use by category at each operation, one on top of the other; empty where the run kept none.
std::string step_memory_chart(const ReportRun& run);

/// An SVG of what each lane did when, in a step that was timed; empty where none was.
std::string step_lanes_chart(const ReportRun& run);

}  // namespace aliquot
