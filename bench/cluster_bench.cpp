// Training over 2 and 4 emulated nodes of 2 ranks, with 1 Gbit/s between nodes. The model is sharded over all ranks
// (ZeRO stage 3) or within each node (--replicas), with and without 8-bit communication (--quantize). In another case,
// each node is one pipeline stage. The cases `stage3_accumulate_4` and `pipeline` train the same model on the same
// number of tokens per step. Reports tokens/s and the bytes that the first node sends in a step, as counted by the
// kernel and as planned. ratio_to_plan is the counted bytes divided by the planned bytes. The counted bytes include
// headers, acknowledgements and all traffic outside the schedule.
#include <benchmark/benchmark.h>
#include <exception>
#include <fmt/format.h>

#include "bench/cluster_runs.h"
#include "bench/paired.h"

namespace aliquot {
namespace {

constexpr int kRounds = 3;
constexpr int kFewSteps = 2, kManySteps = 10;
constexpr const char* kModel = "--layers 4 --width 256 --heads 4 --micro-batch 4";

/// Measures the bytes sent per step as the difference between a long and a short run. This excludes the bytes of the
/// start and of the final digest.
void measure(benchmark::State& state, const ClusterCase& what) {
  std::vector<double> seconds, sent_bytes;
  double tokens = 0;
  for (auto _ : state) {
    try {
      const ClusterRun few = run_on_cluster(what, kFewSteps), many = run_on_cluster(what, kManySteps);
      seconds.push_back(median(many.step_seconds));
      sent_bytes.push_back(static_cast<double>(many.sent_bytes - few.sent_bytes) / (kManySteps - kFewSteps));
      tokens = many.tokens;
    } catch (const std::exception& error) {
      return state.SkipWithError(error.what());
    }
    state.SetIterationTime(seconds.back());
  }
  const double planned = plan_of(what)["crossing_bytes"];
  state.counters["tokens_per_second"] = tokens / median(seconds);
  state.counters["sent_MB_counted"] = median(sent_bytes) * 1e-6;
  state.counters["sent_MB_planned"] = planned * 1e-6;
  state.counters["ratio_to_plan"] = median(sent_bytes) / planned;
}

const bool registered = [] {
  for (const int nodes : {2, 4}) {
    const std::string replicas = fmt::format(" --replicas {}", nodes);
    for (const auto& [name, words] :
         {std::pair<const char*, std::string>{"stage3", ""},
          {"hybrid", replicas},
          {"stage3_accumulate_4", " --tied off --accumulate 4"},
          {"pipeline", fmt::format(" --tied off --pipeline {} --accumulate {}", nodes, 4 * nodes)},
          {"stage3_weights_in_8_bits", " --quantize weights"},
          {"stage3_both_in_8_bits", " --quantize both"},
          {"hybrid_gradients_in_8_bits", replicas + " --quantize gradients"}}) {
      const ClusterCase what{nodes, 2, "1gbit", kModel + words};
      benchmark::RegisterBenchmark(fmt::format("cluster/{}_nodes/{}", nodes, name).c_str(),
                                   [what](benchmark::State& state) { measure(state, what); })
          ->UseManualTime()
          ->Iterations(kRounds)
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace aliquot
