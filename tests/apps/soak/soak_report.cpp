// soak_report FOLDER: checks the samples that scripts/soak.sh wrote to FOLDER (processes.csv, folders.csv, events.csv),
// prints the largest growth of each quantity and writes soak.svg. Exits with 1 if a quantity exceeds its bound, and
// with 2 if the test is inconclusive because there are too few samples or events.
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

// During a save a process has up to two more open files and one more thread, so medians may differ by that much. A leak
// in each save exceeds these bounds, because every judged process saves dozens of times. The allocator's cache varies
// by about 1 MB.
const std::vector<Bound> kOfProcesses = {{.measure = "descriptors", .growth = 2},
                                         {.measure = "threads", .growth = 1},
                                         {.measure = "memory KiB", .growth = 2048, .share = 0.02}};
constexpr Patience kOfLives = {.warm_up_seconds = 4, .least_seconds = 6};
// After minutes without a disturbance the allocator's cache is stable. Growth above this bound would add up to
// gigabytes in a week.
const std::vector<Bound> kOfLongLives = {{.measure = "memory KiB", .growth = 192, .share = 0.01}};
constexpr Patience kLongLives = {.warm_up_seconds = 60, .least_seconds = 240};
constexpr double kLongSoakSeconds = 1200;
// The run keeps 3 checkpoints. While it writes one, that checkpoint and its temporary folder exist too. At the end no
// temporary or shared files may be left.
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
      fmt::print("  no process ran long enough to be judged\n");
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
  if (!picture.flush()) throw std::runtime_error("cannot write " + folder + "/soak.svg");
  return std::max({of_processes, of_folders, missing.empty() ? 0 : 2});
}

}  // namespace
}  // namespace aliquot::test

int main(int count, char** words) try {
  if (count != 2) throw std::runtime_error("expected one argument, the folder that scripts/soak.sh wrote");
  return aliquot::test::report(words[1]);
} catch (const std::exception& error) {
  fmt::print(stderr, "soak_report: {}\n", error.what());
  return 1;
}
