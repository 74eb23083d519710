#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/metrics/metrics_lines.h"
#include "apps/plan/use_costs.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

struct ProfiledRun {
  Json options;
  Json titles, times;  // titles and times of the operations of the recorded step
  std::vector<double> step_seconds;
};

ProfiledRun read(const std::string& path) {
  ProfiledRun run;
  std::ifstream file(path);
  if (!file) throw UsageError(fmt::format("--profile {}: the file cannot be read: {}.", path, std::strerror(errno)));
  const int bad_line = read_metrics_lines(file, [&run](const Json& json) {
    // A resumed run writes a {"run": ...} line again. Only the lines after the last such line count.
    if (json.contains("run"))
      run = {json["run"].at("options"), json["run"].at("plan").at("step").at("titles"), Json(), {}};
    if (json.contains("step")) run.step_seconds.push_back(json.at("step_seconds"));
    if (json.contains("done")) run.times = json["done"].at("step");
    return true;
  });
  if (bad_line > 0)
    throw UsageError(fmt::format("--profile {}:{}: expected a line of aliquot train --metrics.", path, bad_line));
  return run;
}

/// Returns the factor by which to multiply the times of the recorded step. The step then takes as long as the 25th
/// percentile of all steps after the first. Other programs on the machine can only make a step longer, so a low
/// percentile is close to the time of an undisturbed step.
double undisturbed_ratio(const ProfiledRun& run) {
  std::vector<double> seconds(run.step_seconds.begin() + 1, run.step_seconds.end());  // without the warm-up step
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 4] / run.times.at("step_seconds").get<double>();
}

std::vector<UseCost> uses_of(const ProfiledRun& run) {
  std::vector<UseCost> uses;
  std::size_t backward = 0;
  const double factor = undisturbed_ratio(run);
  for (std::size_t id = 0; id < run.titles.size(); ++id) {
    const std::string title = run.titles.at(id);
    const double seconds = factor * (run.times.at("end_seconds").at(id).get<double>() -
                                     run.times.at("start_seconds").at(id).get<double>());
    if (title.starts_with("forward ")) uses.push_back({.forward_seconds = seconds});
    if (title.starts_with("recompute ") || (title.starts_with("backward ") && ++backward > uses.size())) return {};
    if (title.starts_with("backward ")) uses[uses.size() - backward].backward_seconds = seconds;
  }
  return backward == uses.size() ? uses : std::vector<UseCost>{};
}

/// Throws UsageError, which names the options to change, if the profile was recorded with other options than the plan
/// requires.
void refuse_other_options(const std::string& path, const Json& options, int64_t micro_batch, int64_t sequence) {
  std::vector<std::string> recorded, expected, changeable;
  const auto compare = [&](const char* option, int64_t value, bool is_of_plan) {
    const auto found = options.at(option).get<int64_t>();
    if (found == value) return;
    recorded.push_back(fmt::format("--{} {}", option, found));
    expected.push_back(fmt::format("--{} {}", option, value));
    if (is_of_plan) changeable.push_back(recorded.back());
  };
  compare("ranks", 1, false);  // a profile has one rank for any number of ranks of the plan
  compare("micro-batch", micro_batch, true);
  compare("sequence", sequence, true);
  if (recorded.empty()) return;
  const bool can_change_plan = changeable.size() == recorded.size();
  throw UsageError(fmt::format("--profile {}: recorded with {}, expected {}: record it again{}.", path,
                               fmt::join(recorded, " "), fmt::join(expected, " "),
                               can_change_plan ? fmt::format(", or plan with {}", fmt::join(changeable, " ")) : ""));
}

}  // namespace

std::vector<UseCost> read_profile(const std::string& path, int64_t micro_batch, int64_t sequence) {
  std::vector<UseCost> uses;
  try {
    const ProfiledRun run = read(path);
    if (run.options.is_object()) refuse_other_options(path, run.options, micro_batch, sequence);
    if (run.titles.is_array() && run.times.is_object() && run.step_seconds.size() > 1) uses = uses_of(run);
  } catch (const Json::exception&) {
  }
  if (!uses.empty()) return uses;
  throw UsageError(
      fmt::format("--profile {}: found no recorded step with one forward and one backward pass of each use: record one "
                  "with aliquot train --ranks 1 --steps 10 --metrics {}.",
                  path, path));
}

}  // namespace aliquot
