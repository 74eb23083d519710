#pragma once
// What scripts/soak.sh wrote down while a run went on, and whether anything in it grew.

#include <set>
#include <string>
#include <vector>

#include "apps/drawing/svg.h"

namespace aliquot::test {

/// One quantity of one process, or of the run as a whole (`process` is empty): its value over seconds.
struct Series {
  std::string measure, process, world;
  std::vector<Point> points;
};

/// The columns of a table, but those that say when (`seconds`) and of whom (`process`, `world`): a series for each process
/// and column, in the order of their first line. Throws UsageError for what is no such table.
std::vector<Series> read_series(const std::string& csv);

/// How a quantity is judged.
struct Bound {
  std::string measure;
  double growth = 0;       // the most that the median of the last third may lie above that of the first
  double share = 0;        // and this part of the first third's
  double most = 0;         // what no sample may exceed; 0: any
  double at_the_end = -1;  // what the last sample may not exceed; below 0: any
};

/// Where a process is judged at all: after it has warmed up, if it then lived long enough.
struct Patience {
  double warm_up_seconds = 0, least_seconds = 0;
};

struct Verdict {
  std::string measure;
  int judged = 0;                     // series that lived long enough
  double longest_seconds = 0;         // of those, after warming up
  double first = 0, last = 0;         // medians of the first and the last third, of the one that grew most
  std::vector<std::string> problems;  // a sentence for each series that breaks the bound
  std::set<std::string> worlds;       // of the series that were judged
};

Verdict judge(const std::vector<Series>& series, const Bound& bound, Patience patience);

/// What was done to the run, and when.
struct Event {
  double seconds = 0;
  std::string what;
};
std::vector<Event> read_events(const std::string& csv);

/// A soak that shows nothing: a sentence for each kind of disturbance that never came, and for each world that was begun and of
/// which no process was judged.
std::vector<std::string> missing_from(const std::vector<Event>& events, const Verdict& of_processes);

/// Panels under one another, one a measure, lines for processes, and marks along the time for the events.
std::string soak_picture(const std::vector<Series>& series, const std::vector<Event>& events);

}  // namespace aliquot::test
