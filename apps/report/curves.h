#pragma once
// What a run was like, step by step.

#include <string>
#include <vector>

#include "apps/report/report_run.h"

namespace aliquot {

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

}  // namespace aliquot
