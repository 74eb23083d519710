#include "bench/published.h"

#include <benchmark/benchmark.h>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>
#include <utility>

#include "bench/cluster_runs.h"

namespace aliquot {
namespace {

void compare(benchmark::State& state, double published, const std::function<double()>& predicted) {
  double value = 0;
  for (auto _ : state) {
    try {
      value = predicted();
    } catch (const std::exception& error) {
      return state.SkipWithError(error.what());
    }
    state.SetIterationTime(1e-9);
  }
  state.counters["published"] = published;
  state.counters["predicted"] = value;
  state.counters["error_percent"] = 100 * (value / published - 1);
}

}  // namespace

nlohmann::json predicted_plan(const PublishedRun& run, double flops_per_second, const std::string& more) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("aliquot-published-{}.json", getpid());
  nlohmann::json machine = {{"like", run.machine}, {"flops_per_second", flops_per_second}};
  machine.update(run.rates);
  std::ofstream(path) << machine;
  const auto plan = nlohmann::json::parse(
      output_of(fmt::format("{} plan --format json --precision bf16 --ranks {} {} {} --machine {}",
                            ALIQUOT_BENCH_PROGRAM, run.gpus, run.words, more, path.string())));
  std::filesystem::remove(path);
  return plan["plans"][0];
}

double tokens_per_gpu(const PublishedRun& run, double flops_per_second, const std::string& more) {
  return predicted_plan(run, flops_per_second, more)["tokens_per_second"].get<double>() / run.gpus;
}

double calibrated_flops(const PublishedRun& run, double published) {
  double low = 1e13, high = 2e15;
  for (int i = 0; i < 30; ++i) {
    const double middle = std::sqrt(low * high);
    (tokens_per_gpu(run, middle) < published ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

void add_published(const std::string& name, double published, std::function<double()> predicted) {
  benchmark::RegisterBenchmark(
      fmt::format("published/{}", name).c_str(),
      [published, predicted = std::move(predicted)](benchmark::State& state) { compare(state, published, predicted); })
      ->UseManualTime()
      ->Iterations(1);
}

}  // namespace aliquot
