#include "bench/training_runs.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <unistd.h>

namespace aliquot {
namespace {

using Json = nlohmann::json;

constexpr int kWarmUp = 2;

/// Runs a shell command and returns its standard output. Throws std::runtime_error if it fails.
std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start the command: " + command);
  std::string output;
  char line[4096];
  while (std::fgets(line, sizeof line, pipe) != nullptr) output += line;
  if (pclose(pipe) != 0) throw std::runtime_error("the command failed: " + command);
  return output;
}

/// Returns the seconds of the recorded step, by verb. The verb, such as gather or reduce, is the first word of an
/// operation's title.
std::map<std::string, double> seconds_by_verb(const Json& run, const Json& step) {
  std::map<std::string, double> seconds;
  const Json& titles = run["plan"]["step"]["titles"];
  for (std::size_t i = 0; i < titles.size(); ++i) {
    const std::string title = titles[i];
    seconds[title.substr(0, title.find(' '))] +=
        step["end_seconds"][i].get<double>() - step["start_seconds"][i].get<double>();
  }
  return seconds;
}

/// Returns the seconds of the recorded step, by part. Gathers and reduces overlap the other parts. "waiting" is the
/// time of the rank's own thread that belongs to no other part.
std::map<std::string, double> parts_of(const Json& run, const Json& step) {
  std::map<std::string, double> parts = step["part_seconds"];
  std::map<std::string, double> verbs = seconds_by_verb(run, step);
  parts["optimizer"] = verbs["update"];
  parts["gather"] = verbs["gather"] + verbs["publish"];
  parts["reduce"] = verbs["reduce"] + verbs["spread"];
  parts["waiting"] = std::max(0.0, parts["other"] - verbs["update"]);
  parts.erase("other");
  return parts;
}

TrainingRun read_metrics(const std::filesystem::path& path) {
  TrainingRun result;
  std::ifstream file(path);
  Json run;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    if (json.contains("run")) run = json["run"];
    if (json.contains("step") && json["step"] > kWarmUp) result.step_seconds.push_back(json["step_seconds"]);
    if (!json.contains("done")) continue;
    result.share_bytes = json["done"]["system_bytes"];
    result.part_seconds = parts_of(run, json["done"]["step"]);
  }
  if (result.step_seconds.empty())
    throw std::runtime_error(fmt::format("{} has no step after the {} warm-up steps", path.string(), kWarmUp));
  return result;
}

}  // namespace

TrainingRun run_aliquot(const TrainingSetting& setting, int step_count) {
  const std::filesystem::path metrics =
      std::filesystem::temp_directory_path() / fmt::format("aliquot-bench-{}.jsonl", getpid());
  const std::string launcher = ALIQUOT_BENCH_MPIEXEC;
  const std::string start =
      launcher.empty()
          ? fmt::format("{} train --ranks {}", ALIQUOT_BENCH_PROGRAM, setting.ranks)
          : fmt::format(
                "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {} -n {} --oversubscribe --bind-to none {} "
                "train",
                launcher, setting.ranks, ALIQUOT_BENCH_PROGRAM);
  output_of(
      fmt::format("{} --threads 1 --model gpt2-124m --sequence 256 --micro-batch 1 --steps {} --zero-stage {} "
                  "--precision {} --quiet --metrics {} {}",
                  start, step_count + kWarmUp, setting.zero_stage, setting.precision, metrics.string(), setting.words));
  TrainingRun result = read_metrics(metrics);
  std::filesystem::remove(metrics);
  return result;
}

bool has_torch() { return std::getenv("ALIQUOT_BENCH_PYTHON") != nullptr; }

TrainingRun run_torch(const std::string& mode, const std::string& precision, int step_count) {
  std::istringstream words(
      output_of(fmt::format("OMP_NUM_THREADS=1 {} {} {} {} {}", std::getenv("ALIQUOT_BENCH_PYTHON"),
                            ALIQUOT_BENCH_TORCH, mode, precision, step_count + kWarmUp)));
  TrainingRun result;
  int step = 0;
  double value = 0;
  for (std::string word; words >> word >> value;) {
    if (word == "step" && ++step > kWarmUp) result.step_seconds.push_back(value);
    if (word == "pss") result.share_bytes = static_cast<int64_t>(value);
  }
  if (result.step_seconds.empty())
    throw std::runtime_error(fmt::format("training_torch.py printed no step after the {} warm-up steps", kWarmUp));
  return result;
}

}  // namespace aliquot
