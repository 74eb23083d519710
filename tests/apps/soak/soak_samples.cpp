#include "tests/apps/soak/soak_samples.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "apps/report/csv.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

using Rows = std::vector<std::vector<std::string>>;

double number(const std::string& text) try {
  size_t used = 0;
  const double value = std::stod(text, &used);
  if (used != text.size()) throw std::invalid_argument(text);
  return value;
} catch (const std::logic_error&) {
  throw UsageError(fmt::format("invalid sample '{}': expected a number. Its line may be truncated.", text));
}

Rows rows_of(const std::string& csv, const std::string& first_column) {
  Rows rows = parse_csv(csv);
  if (rows.size() < 2 || rows[0].empty() || rows[0][0] != first_column)
    throw UsageError(
        fmt::format("invalid table: expected a first column named {} and at least one row.", first_column));
  for (const auto& row : rows) {
    if (row.size() != rows[0].size())
      throw UsageError(fmt::format("a row has {} columns: expected {}.", row.size(), rows[0].size()));
  }
  return rows;
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Returns the samples in the first third of the time, and those in the last third.
std::pair<std::vector<double>, std::vector<double>> end_samples(const std::vector<Point>& points) {
  const double third = (points.back().x - points.front().x) / 3;
  std::vector<double> first, last;
  for (const Point& p : points) {
    if (p.x <= points.front().x + third) first.push_back(p.y);
    if (p.x >= points.back().x - third) last.push_back(p.y);
  }
  return {std::move(first), std::move(last)};
}

/// Whether the samples of the last third exceed those of the first third by more than the bound. Some quantities
/// alternate between two values: for example, each rank has one more thread during a save. A median of a few samples
/// may then change, but a leak raises the smallest and the largest sample too.
bool grew(const std::vector<double>& first, const std::vector<double>& last, const Bound& bound) {
  const auto exceeds = [&](double before, double after) {
    return after - before > bound.growth + bound.share * before;
  };
  return exceeds(median_of(first), median_of(last)) && exceeds(std::ranges::min(first), std::ranges::min(last)) &&
         exceeds(std::ranges::max(first), std::ranges::max(last));
}

std::string describe(const Series& series) {
  return series.process.empty() ? series.measure
                                : fmt::format("{} of process {} ({})", series.measure, series.process, series.world);
}

/// Adds a message if a sample of the series exceeds `bound.most`. Series of processes that ended too early for a
/// judgement of their growth are checked too.
void judge_samples(const Series& series, const Bound& bound, std::vector<std::string>& problems) {
  for (const Point& p : series.points) {
    if (bound.most <= 0 || p.y <= bound.most) continue;
    problems.push_back(fmt::format("{}: {} at {:.0f} s, expected at most {}", describe(series), p.y, p.x, bound.most));
    return;
  }
}

bool is_resize(const Event& event) {
  return event.what.find_first_not_of("0123456789") > 0 && event.what.ends_with(" ranks");
}

}  // namespace

std::vector<Series> read_series(const std::string& csv) {
  const Rows rows = rows_of(csv, "seconds");
  const std::vector<std::string>& names = rows[0];
  const bool of_processes = names.size() > 2 && names[1] == "process" && names[2] == "world";
  std::vector<Series> all;
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (size_t r = 1; r < rows.size(); ++r) {
    const std::string process = of_processes ? rows[r][1] : "", world = of_processes ? rows[r][2] : "";
    for (size_t c = of_processes ? 3 : 1; c < names.size(); ++c) {
      const auto [place, is_new] = places.try_emplace({process, names[c]}, all.size());
      if (is_new) all.push_back({names[c], process, world, {}});
      all[place->second].points.push_back({number(rows[r][0]), number(rows[r][c])});
    }
  }
  return all;
}

std::vector<Event> read_events(const std::string& csv) {
  const Rows rows = rows_of(csv, "seconds");
  std::vector<Event> events;
  for (size_t r = 1; r < rows.size(); ++r) events.push_back({number(rows[r][0]), rows[r].at(1)});
  return events;
}

Verdict judge(const std::vector<Series>& series, const Bound& bound, Patience patience) {
  Verdict verdict{.measure = bound.measure, .problems = {}, .worlds = {}};
  for (const Series& one : series) {
    if (one.measure != bound.measure) continue;
    judge_samples(one, bound, verdict.problems);
    const double began = one.points.front().x, ended = one.points.back().x, last = one.points.back().y;
    if (bound.at_the_end >= 0 && last > bound.at_the_end)
      verdict.problems.push_back(
          fmt::format("{}: {} at the end, expected at most {}", describe(one), last, bound.at_the_end));
    std::vector<Point> warm;
    for (const Point& p : one.points) {
      if (p.x >= began + patience.warm_up_seconds) warm.push_back(p);
    }
    if (warm.empty() || ended - warm.front().x < patience.least_seconds) continue;
    verdict.worlds.insert(one.world);
    const auto [first, last_third] = end_samples(warm);
    const double before = median_of(first), after = median_of(last_third);
    if (verdict.judged++ == 0 || after - before > verdict.last - verdict.first)
      verdict.first = before, verdict.last = after;
    verdict.longest_seconds = std::max(verdict.longest_seconds, ended - warm.front().x);
    if (grew(first, last_third, bound))
      verdict.problems.push_back(
          fmt::format("{} grew from {} to {} within {:.0f} s", describe(one), before, after, ended - warm.front().x));
  }
  return verdict;
}

std::vector<std::string> missing_from(const std::vector<Event>& events, const Verdict& of_processes) {
  std::vector<std::string> missing;
  const auto has_event = [&](std::string_view what) {
    return std::ranges::find(events, what, &Event::what) != events.end();
  };
  for (const char* kind : {"kill of a rank", "kill of all ranks", "USR1", "TERM"}) {
    if (!has_event(kind)) missing.push_back(fmt::format("no event '{}' occurred", kind));
  }
  if (std::ranges::none_of(events, is_resize)) missing.emplace_back("the number of ranks never changed");
  for (const char* world : {"mpi", "threads"}) {
    if (has_event(world) && !of_processes.worlds.contains(world))
      missing.push_back(fmt::format("no process of world {} ran long enough to be judged", world));
  }
  return missing;
}

}  // namespace aliquot::test
