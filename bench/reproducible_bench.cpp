// Compares steps of GPT-2 124M with and without --reproducible, on one rank and in a tensor group of two ranks with one
// thread each. The runs of a pair alternate. ratio_to_default is the median of the ratios of the pairs.
#include <benchmark/benchmark.h>
#include <exception>
#include <fmt/format.h>

#include "bench/paired.h"
#include "bench/training_runs.h"

namespace aliquot {
namespace {

constexpr int kPairs = 3, kSteps = 6;

void compare(benchmark::State& state, const TrainingSetting& setting) {
  std::vector<double> seconds, defaults, ratios;
  for (auto _ : state) {
    try {
      TrainingSetting reproducible = setting;
      reproducible.words += " --reproducible";
      defaults.push_back(median(run_aliquot(setting, kSteps).step_seconds));
      seconds.push_back(median(run_aliquot(reproducible, kSteps).step_seconds));
      ratios.push_back(seconds.back() / defaults.back());
    } catch (const std::exception& error) {
      return state.SkipWithError(error.what());
    }
    state.SetIterationTime(seconds.back());
  }
  state.counters["default_ms"] = 1e3 * median(defaults);
  state.counters["ratio_to_default"] = median(ratios);
}

const bool registered = [] {
  for (const int ranks : {1, 2}) {
    for (const char* precision : {"fp32", "bf16"}) {
      const TrainingSetting setting{3, precision, ranks, fmt::format("--tensor {}", ranks)};
      const std::string name = fmt::format("training/reproducible/{}/tensor_{}", precision, ranks);
      benchmark::RegisterBenchmark(name.c_str(), [setting](benchmark::State& state) { compare(state, setting); })
          ->UseManualTime()
          ->Iterations(kPairs)
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace aliquot
