// Compares step times that aliquot plan predicts with step times that aliquot train measures, over emulated nodes of
// one rank each. The cases cover two models, ZeRO stage 2, ZeRO stage 3 with and without prefetch, all pipeline
// schedules, 2 and 4 nodes, and fast and slow links. The predictions use link rates that aliquot doctor --measure
// measured between these nodes, and a profile of the model on one rank. They use no result of the measured runs. Both
// commands plan with these rates. The counter `spread` is the relative range of the repeats of a case. The summary
// covers cases with a spread of at most 10 %. It also has the rank correlation of predicted and measured times per
// token, among the cases of one model, link and number of nodes.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <unistd.h>

#include "bench/cluster_runs.h"
#include "bench/paired.h"

namespace aliquot {
namespace {

constexpr int kRepeats = 3, kSteps = 12;
constexpr double kTolerance = 0.10;

struct Model {
  const char* name;
  const char* words;
};
constexpr Model kModels[] = {{"nano", "--model gpt2-nano"},
                             {"wide", "--layers 4 --width 256 --heads 4 --micro-batch 4"}};

struct Case {
  ClusterCase run;
  std::string group, name, model_words;
};

/// A setting whose predicted and measured times are compared.
struct Setting {
  const char* name;
  const char* words;
};
constexpr Setting kZeroSettings[] = {
    {"stage2", "--zero-stage 2"}, {"stage3_late", "--prefetch 0"}, {"stage3_ahead", "--prefetch 1"}};
constexpr Setting kPipelineSettings[] = {
    {"1f1b", "--pipeline 2 --accumulate 4 --pipeline-cut 4,4"},
    {"gpipe", "--pipeline 2 --accumulate 4 --pipeline-cut 4,4 --pipeline-schedule gpipe"},
    {"zero_bubble", "--pipeline 2 --accumulate 4 --pipeline-cut 4,4 --pipeline-schedule zero-bubble"},
    {"interleaved", "--pipeline 2 --accumulate 4 --pipeline-cut 3,1,1,3 --pipeline-schedule interleaved"}};

/// A temporary folder, removed by the destructor.
struct Scratch {
  Scratch() { std::filesystem::create_directories(path); }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::filesystem::path path = std::filesystem::temp_directory_path() / fmt::format("aliquot-simulator-{}", getpid());
};

const std::filesystem::path& scratch() {
  static const Scratch folder;
  return folder.path;
}

/// Returns an estimate of the time of a step without other programs on the machine, which only make steps slower. The
/// estimate is the first quartile of the means over 4 consecutive steps. It uses means because a step may leave work to
/// the next one.
double undisturbed_seconds(const std::vector<double>& seconds) {
  constexpr std::ptrdiff_t kWindow = 4;
  std::vector<double> means;
  for (auto first = seconds.begin(); seconds.end() - first >= kWindow; ++first)
    means.push_back(std::accumulate(first, first + kWindow, 0.0) / kWindow);
  if (means.empty())
    throw std::runtime_error(
        fmt::format("only {} steps were measured: at least {} are needed", seconds.size(), kWindow));
  std::ranges::sort(means);
  return means[means.size() / 4];
}

double read_undisturbed_seconds(const std::string& metrics) {
  std::vector<double> seconds;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains("step")) seconds.push_back(json["step_seconds"]);
  }
  return undisturbed_seconds(seconds);
}

/// A metrics file of a run on one rank.
struct Profile {
  std::string path;
  double step_seconds = 0;
};

/// Trains on one rank. Meanwhile, a second run occupies another core, as the rank of another emulated node does. The
/// metrics of the second run (FILE.company) are not used.
Profile measure_profile(const std::string& model_words) {
  static int count = 0;
  const std::string path = scratch() / fmt::format("profile-{}.jsonl", count++);
  const std::string train =
      fmt::format("{} train --quiet --ranks 1 --threads 1 --steps {} {}", ALIQUOT_BENCH_PROGRAM, kSteps, model_words);
  output_of(fmt::format("taskset -c 1 {} --metrics {}.company & taskset -c 0 {} --metrics {}; wait", train, path, train,
                        path));
  return {path, read_undisturbed_seconds(path)};
}

/// Returns the profile whose step has the median time. The number of profiles is odd.
Profile median_profile(std::vector<Profile> profiles) {
  std::ranges::sort(profiles, {}, &Profile::step_seconds);
  return profiles[profiles.size() / 2];
}

/// Returns the path of a machine file with the link rates measured between the emulated nodes. Ranks share cores if
/// there are more nodes than cores.
std::string machine_of(const std::string& rate, int nodes) {
  static std::map<std::pair<std::string, int>, std::string> known;
  std::string& path = known[{rate, nodes}];
  if (!path.empty()) return path;
  const std::string file = scratch() / fmt::format("machine-{}-{}.json", rate, nodes), measured = file + ".measured";
  output_of(fmt::format("OMPI_MCA_orte_leave_session_attached=1 {} --nodes {} --rate {} {} doctor --measure {} 2>&1",
                        ALIQUOT_BENCH_CLUSTER, nodes, rate, ALIQUOT_BENCH_PROGRAM, measured));
  nlohmann::json machine = nlohmann::json::parse(std::ifstream(measured));
  machine["cores_per_thread"] = static_cast<double>(std::thread::hardware_concurrency()) / nodes;
  std::ofstream(file) << machine;
  return path = file;
}

/// A case whose repeats agree.
struct StableResult {
  std::string group;
  double error = 0;
  double predicted_seconds = 0, measured_seconds = 0;  // per token
};

std::vector<StableResult>& stable_results() {
  static std::vector<StableResult> results;
  return results;
}

/// Returns Spearman's rank correlation of the times in a group. Measured times are never equal.
double rank_correlation(const std::vector<StableResult>& group) {
  const auto ranks_by = [&](double StableResult::*time) {
    std::vector<double> ranks;
    for (const StableResult& of : group)
      ranks.push_back(static_cast<double>(
          std::ranges::count_if(group, [&](const StableResult& other) { return other.*time < of.*time; })));
    return ranks;
  };
  const std::vector<double> predicted = ranks_by(&StableResult::predicted_seconds);
  const std::vector<double> measured = ranks_by(&StableResult::measured_seconds);
  const auto count = static_cast<double>(group.size());
  double squares = 0;
  for (std::size_t i = 0; i < group.size(); ++i) squares += (predicted[i] - measured[i]) * (predicted[i] - measured[i]);
  return 1 - 6 * squares / (count * (count * count - 1));
}

void compare(benchmark::State& state, const Case& one) {
  std::vector<double> seconds, hidden;
  double tokens = 0;
  nlohmann::json predicted;
  for (auto _ : state) {
    try {
      const auto with = [&](const Profile& profile) {
        ClusterCase planned = one.run;
        planned.words +=
            fmt::format(" --machine {} --profile {}", machine_of(one.run.rate, one.run.nodes), profile.path);
        return planned;
      };
      // The speed of a virtual machine changes with time. So each repeat has a profile of its own.
      std::vector<Profile> profiles;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        profiles.push_back(measure_profile(one.model_words));
        const ClusterRun run = run_on_cluster(with(profiles.back()), kSteps);
        seconds.push_back(undisturbed_seconds(run.step_seconds));
        hidden.push_back(run.hidden_share);
        tokens = run.tokens;
      }
      predicted = plan_of(with(median_profile(profiles)));
    } catch (const std::exception& error) {
      return state.SkipWithError(error.what());
    }
    state.SetIterationTime(median(seconds));
  }
  const auto [least, most] = std::ranges::minmax(seconds);
  const double error = predicted["step_seconds"].get<double>() / median(seconds) - 1, spread = most / least - 1;
  if (spread <= kTolerance) {
    stable_results().push_back(
        {one.group, std::abs(error), predicted["step_seconds"].get<double>() / tokens, median(seconds) / tokens});
  }
  state.counters["predicted_ms"] = 1e3 * predicted["step_seconds"].get<double>();
  state.counters["error_percent"] = 100 * error;
  state.counters["spread_percent"] = 100 * spread;
  state.counters["hidden_percent"] = 100 * median(hidden);
  state.counters["hidden_percent_predicted"] = 100 * predicted["hidden_share"].get<double>();
}

void summarise(benchmark::State& state) {
  for (auto _ : state) state.SetIterationTime(1e-9);
  state.counters["cases_with_repeats_that_agree"] = static_cast<double>(stable_results().size());
  if (stable_results().empty()) return;
  std::vector<double> errors, correlations;
  std::map<std::string, std::vector<StableResult>> groups;
  for (const StableResult& result : stable_results()) {
    errors.push_back(result.error);
    groups[result.group].push_back(result);
  }
  state.counters["median_error_percent"] = 100 * median(errors);
  state.counters["worst_error_percent"] = 100 * std::ranges::max(errors);
  for (const auto& [name, group] : groups) {
    if (group.size() >= 3) correlations.push_back(rank_correlation(group));
  }
  if (correlations.empty()) return;
  state.counters["mean_rank_correlation"] =
      std::accumulate(correlations.begin(), correlations.end(), 0.0) / static_cast<double>(correlations.size());
  state.counters["least_rank_correlation"] = std::ranges::min(correlations);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Model& model : kModels) {
    for (const char* rate : {"1gbit", "200mbit"}) {
      for (const int nodes : {2, 4}) {
        const auto add = [&](const Setting& setting) {
          const std::string group = fmt::format("simulator/{}/{}/{}_nodes", model.name, rate, nodes);
          all.push_back({{nodes, 1, rate, fmt::format("{} {}", model.words, setting.words)},
                         group,
                         fmt::format("{}/{}", group, setting.name),
                         model.words});
        };
        for (const Setting& setting : kZeroSettings) add(setting);
        // With more ranks than cores, ranks compute faster while others wait for data. The simulator does not model
        // this, so pipelines have one rank per core.
        if (nodes > 2) continue;
        for (const Setting& setting : kPipelineSettings) add(setting);
      }
    }
  }
  return all;
}

const bool registered = [] {
  for (const Case& one : cases()) {
    benchmark::RegisterBenchmark(one.name.c_str(), [one](benchmark::State& state) { compare(state, one); })
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("simulator/summary", summarise)->UseManualTime()->Iterations(1);
  return true;
}();

}  // namespace
}  // namespace aliquot
