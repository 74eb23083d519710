#include "apps/plan/profile.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

namespace aliquot {
namespace {

using Json = nlohmann::json;

struct RecordedRun {
  Json titles, times;  // of the operations of one step
  std::vector<double> step_seconds;
};

RecordedRun read(const std::string& path) {
  RecordedRun run;
  std::ifstream file(path);
  if (!file) throw UsageError(fmt::format("--profile {}: the file cannot be read.", path));
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) throw UsageError(fmt::format("--profile {}: it is no --metrics file.", path));
    if (json.contains("run")) run.titles = json["run"]["plan"]["step"]["titles"];
    if (json.contains("step")) run.step_seconds.push_back(json["step_seconds"]);
    if (json.contains("done")) run.times = json["done"]["step"];
  }
  return run;
}

/// What the recorded step is to be multiplied with, to be one that a quarter of the steps were no slower than: what else
/// runs on a machine makes a step longer, never shorter.
double to_undisturbed(const RecordedRun& run) {
  std::vector<double> seconds(run.step_seconds.begin() + 1, run.step_seconds.end());  // the first one warms up
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 4] / run.times["step_seconds"].get<double>();
}

std::vector<UseCost> uses_of(const RecordedRun& run) {
  std::vector<UseCost> uses;
  std::size_t backward = 0;
  const double factor = to_undisturbed(run);
  for (std::size_t id = 0; id < run.titles.size(); ++id) {
    const std::string title = run.titles[id];
    const double seconds =
        factor * (run.times["end_seconds"][id].get<double>() - run.times["start_seconds"][id].get<double>());
    if (title.starts_with("forward ")) uses.push_back({.forward_seconds = seconds});
    if (title.starts_with("recompute ") || (title.starts_with("backward ") && ++backward > uses.size())) return {};
    if (title.starts_with("backward ")) uses[uses.size() - backward].backward_seconds = seconds;
  }
  return backward == uses.size() ? uses : std::vector<UseCost>{};
}

}  // namespace

std::vector<UseCost> read_profile(const std::string& path) {
  std::vector<UseCost> uses;
  try {
    const RecordedRun run = read(path);
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
