#include <algorithm>
#include <fmt/format.h>
#include <fstream>

#include "apps/metrics/metrics_lines.h"
#include "apps/plan/use_costs.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

struct ProfiledRun {
  Json options;
  Json titles, times;  // of the operations of one step
  std::vector<double> step_seconds;
};

ProfiledRun read(const std::string& path) {
  ProfiledRun run;
  std::ifstream file(path);
  if (!file) throw UsageError(fmt::format("--profile {}: the file cannot be read.", path));
  const int bad_line = read_metrics_lines(file, [&run](const Json& json) {
    // A run that was resumed says all of it anew.
    if (json.contains("run"))
      run = {json["run"].at("options"), json["run"].at("plan").at("step").at("titles"), Json(), {}};
    if (json.contains("step")) run.step_seconds.push_back(json.at("step_seconds"));
    if (json.contains("done")) run.times = json["done"].at("step");
    return true;
  });
  if (bad_line > 0) throw UsageError(fmt::format("--profile {}: it is no --metrics file.", path));
  return run;
}

/// What the recorded step is to be multiplied with, to be one that a quarter of the steps were no slower than: what else
/// runs on a machine makes a step longer, never shorter.
double undisturbed_ratio(const ProfiledRun& run) {
  std::vector<double> seconds(run.step_seconds.begin() + 1, run.step_seconds.end());  // the first one warms up
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

}  // namespace

std::vector<UseCost> read_profile(const std::string& path, int64_t micro_batch, int64_t sequence) {
  std::vector<UseCost> uses;
  try {
    const ProfiledRun run = read(path);
    const auto was = [&](const char* option) { return run.options.at(option).get<int64_t>(); };
    if (run.options.is_object() &&
        (was("ranks") != 1 || was("micro-batch") != micro_batch || was("sequence") != sequence)) {
      throw UsageError(fmt::format(
          "--profile {}: it is of {} ranks and {} sequences of {} tokens at once; give one of 1 rank and {} of {}.",
          path, was("ranks"), was("micro-batch"), was("sequence"), micro_batch, sequence));
    }
    if (run.titles.is_array() && run.times.is_object() && run.step_seconds.size() > 1) uses = uses_of(run);
  } catch (const Json::exception&) {
  }
  if (!uses.empty()) return uses;
  throw UsageError(
      fmt::format("--profile {}: it has no recorded step in which each use runs once forward and once "
                  "backward; train with --ranks 1 --steps 10 --metrics {}.",
                  path, path));
}

}  // namespace aliquot
