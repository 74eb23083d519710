// soak_report FOLDER: judges what scripts/soak.sh left there (processes.csv, folders.csv, events.csv), prints what grew most,
// and draws soak.svg. 1 and a sentence for each thing that grew; 2 if too little was seen to say so.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <fstream>
#include <iterator>

#include "tests/apps/soak/soak_samples.h"

namespace aliquot::test {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A save opens a file or two and has a thread while it writes, so a sample more or less may fall on one. What leaks, leaks
// at each of the saves, of which a process that is judged makes dozens. The allocator's own keeping varies by a megabyte.
const std::vector<Bound> kOfProcesses = {{.measure = "descriptors", .growth = 2},
                                         {.measure = "threads", .growth = 1},
                                         {.measure = "memory KiB", .growth = 2048, .share = 0.02}};
constexpr Patience kOfLives = {.warm_up_seconds = 4, .least_seconds = 6};
// A process that is left alone for minutes has its allocators settled: what goes on growing then would be gigabytes in a week.
const std::vector<Bound> kOfLongLives = {{.measure = "memory KiB", .growth = 192, .share = 0.01}};
constexpr Patience kLongLives = {.warm_up_seconds = 60, .least_seconds = 240};
constexpr double kLongSoakSeconds = 1200;
// One more checkpoint than are kept while one is written, and its folder; and nothing at all at the end.
const std::vector<Bound> kOfFolders = {{.measure = "temporary files", .growth = 0, .at_the_end = 0},
                                       {.measure = "shared files", .growth = 0, .at_the_end = 0},
                                       {.measure = "checkpoints", .most = 5, .at_the_end = 3},
                                       {.measure = "checkpoint KiB", .share = 0.34}};

int judged_all(const std::vector<Series>& series, const std::vector<Bound>& bounds, Patience patience) {
  int status = 0;
  for (const Bound& bound : bounds) {
    const Verdict verdict = judge(series, bound, patience);
    fmt::print("{:<16} {:>8} {:>10.0f} {:>12} {:>12}\n", verdict.measure, verdict.judged, verdict.longest_seconds,
               verdict.first, verdict.last);
    for (const std::string& problem : verdict.problems) {
      fmt::print("  {}\n", problem);
      status = 1;
    }
    if (verdict.judged == 0 && status == 0) {
      fmt::print("  nothing lived long enough to be judged\n");
      status = 2;
    }
  }
  return status;
}

int report(const std::string& folder) {
  std::vector<Series> processes = read_series(text_of(folder + "/processes.csv"));
  const std::vector<Series> folders = read_series(text_of(folder + "/folders.csv"));
  const std::vector<Event> events = read_events(text_of(folder + "/events.csv"));
  fmt::print("{:<16} {:>8} {:>10} {:>12} {:>12}\n", "", "judged", "longest s", "first third", "last third");
  int of_processes = judged_all(processes, kOfProcesses, kOfLives);
  if (!folders.empty() && folders[0].points.back().x > kLongSoakSeconds)
    of_processes = std::max(of_processes, judged_all(processes, kOfLongLives, kLongLives));
  const int of_folders = judged_all(folders, kOfFolders, {.warm_up_seconds = 10, .least_seconds = 20});
  const auto missing = missing_from(events, judge(processes, kOfProcesses[0], kOfLives));
  for (const std::string& sentence : missing) fmt::print("{}\n", sentence);
  processes.insert(processes.end(), folders.begin(), folders.end());
  std::ofstream picture(folder + "/soak.svg");
  picture << soak_picture(processes, events);
  if (!picture.flush()) throw std::runtime_error(folder + "/soak.svg could not be written");
  return std::max({of_processes, of_folders, missing.empty() ? 0 : 2});
}

}  // namespace
}  // namespace aliquot::test

int main(int count, char** words) try {
  if (count != 2) throw std::runtime_error("soak_report FOLDER");
  return aliquot::test::report(words[1]);
} catch (const std::exception& error) {
  fmt::print(stderr, "soak_report: {}\n", error.what());
  return 1;
}
