#pragma once
// The samples that scripts/soak.sh takes from a run, and the check that no quantity grows.

#include <set>
#include <string>
#include <vector>

#include "apps/drawing/svg.h"

namespace aliquot::test {

/// One quantity of one process, or of the entire run if `process` is empty. Points are (seconds, value).
struct Series {
  std::string measure, process, world;
  std::vector<Point> points;
};

/// Reads a table with the column `seconds` and optionally `process` and `world`. Returns a series for each process and
/// each other column. Processes are in the order in which they first appear. Throws UsageError for an invalid table.
std::vector<Series> read_series(const std::string& csv);

/// The limits of a quantity. The median of the last third of the time may exceed the median of the first third by
/// `growth` plus `share` times the latter.
struct Bound {
  std::string measure;
  double growth = 0;
  double share = 0;
  double most = 0;         // upper limit of every sample; 0 means no limit
  double at_the_end = -1;  // upper limit of the last sample; negative means no limit
};

/// The growth of a series is judged without its first `warm_up_seconds`, and only if at least `least_seconds` remain.
struct Patience {
  double warm_up_seconds = 0, least_seconds = 0;
};

struct Verdict {
  std::string measure;
  int judged = 0;              // how many series were long enough to be judged
  double longest_seconds = 0;  // longest time after the warm-up in a judged series
  // Medians of the first and the last third of the series with the largest growth.
  double first = 0, last = 0;
  std::vector<std::string> problems;  // one message for each bound that a series exceeds
  std::set<std::string> worlds;       // "mpi" or "threads": the worlds of the judged series
};

Verdict judge(const std::vector<Series>& series, const Bound& bound, Patience patience);

/// A disturbance of the run, such as "USR1", or the start of a world ("mpi" or "threads").
struct Event {
  double seconds = 0;
  std::string what;
};
std::vector<Event> read_events(const std::string& csv);

/// Returns reasons why a soak test is inconclusive: one message for each kind of disturbance that never occurred, and
/// for each world that started but has no judged process.
std::vector<std::string> missing_from(const std::vector<Event>& events, const Verdict& of_processes);

/// Returns an SVG with one panel per measure and one line per series. Vertical lines mark the events.
std::string soak_picture(const std::vector<Series>& series, const std::vector<Event>& events);

}  // namespace aliquot::test
