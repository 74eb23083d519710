// Predictions of aliquot plan for published runs on machines that are not available here. Except for ZeRO++, each
// publication and kind of GPU has a compute rate, which is chosen so that the plan predicts one run exactly. The names
// of these runs end in _calibrated. The plan then predicts the other runs with the same rate. The published runs are:
//   torchtitan (docs/performance.md), FSDP2: Llama 3.1 8B compiled, on H100 with 400 Gbit/s per GPU, 2 sequences of
//   8192 tokens per GPU; Llama 3 8B and 70B on 64 A100, 1 sequence per GPU, 70B with full recomputation;
//   FSDP (Zhao et al., 2023): GPT-175B on A100 with 200 Gbit/s per GPU, 1 sequence of 2048 tokens per GPU, full
//   recomputation, linear scaling to 512 GPUs;
//   ZeRO++ (Wang et al., 2023): up to 2.16 times the throughput of ZeRO-3 on 384 V100. The paper does not state the
//   other settings. We assume 18 billion parameters, 1024 tokens and 5e13 operations/s per GPU, 16 GPUs and
//   100 Gbit/s per node.
#include <benchmark/benchmark.h>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "bench/cluster_runs.h"

namespace aliquot {
namespace {

struct Run {
  std::string machine;  // name of a machine preset
  std::string words;    // flags of aliquot plan
  int gpus;
  nlohmann::json rates = nlohmann::json::object();  // rates that replace those of the preset
};

double tokens_per_gpu(const Run& run, double flops_per_second, const std::string& more = "") {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("aliquot-published-{}.json", getpid());
  nlohmann::json machine = {{"like", run.machine}, {"flops_per_second", flops_per_second}};
  machine.update(run.rates);
  std::ofstream(path) << machine;
  const auto plan = nlohmann::json::parse(
      output_of(fmt::format("{} plan --format json --precision bf16 --ranks {} {} {} --machine {}",
                            ALIQUOT_BENCH_PROGRAM, run.gpus, run.words, more, path.string())));
  std::filesystem::remove(path);
  return plan["plans"][0]["tokens_per_second"].get<double>() / run.gpus;
}

/// Returns the compute rate of a GPU for which the plan predicts the published throughput of the run.
double calibrated(const Run& run, double published) {
  double low = 1e13, high = 2e15;
  for (int i = 0; i < 30; ++i) {
    const double middle = std::sqrt(low * high);
    (tokens_per_gpu(run, middle) < published ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

const std::string kLlama8b = "--model llama-8b --ranks-per-node 8 --sequence 8192";
const std::string kLlama70b =
    "--model llama-8b --layers 80 --width 8192 --heads 64 --kv-heads 8 --hidden 28672 --ranks-per-node 8 --sequence "
    "8192";
const std::string kGpt175b =
    "--model gpt2-1.5b --layers 96 --width 12288 --heads 96 --hidden 49152 --context 2048 --vocab 50000 "
    "--ranks-per-node 8 "
    "--recompute block";

const Run kH100{"dgx-h100", kLlama8b + " --micro-batch 2", 8};
const Run kA100{"dgx-a100", kLlama8b, 64};
const Run kA100With175b{"dgx-a100", kGpt175b, 128};

double h100_flops() {
  static const double flops = calibrated(kH100, 6667);
  return flops;
}
double a100_flops() {
  static const double flops = calibrated(kA100, 2973);
  return flops;
}
/// The paper reports 173 TFLOP/s per GPU. With full recomputation it counts 8 operations per parameter and token, so
/// this is 124 tokens/s per GPU.
double a100_flops_with_175b() {
  static const double flops = calibrated(kA100With175b, 173e12 / (8 * 175e9));
  return flops;
}

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

void add(const char* name, double published, std::function<double()> predicted) {
  benchmark::RegisterBenchmark(fmt::format("published/{}", name).c_str(),
                               [=](benchmark::State& state) { compare(state, published, predicted); })
      ->UseManualTime()
      ->Iterations(1);
}

const bool registered = [] {
  add("llama_8b_8_h100_tokens_per_gpu_calibrated", 6667, [] { return tokens_per_gpu(kH100, h100_flops()); });
  add("llama_8b_128_h100_tokens_per_gpu", 6514, [] {
    return tokens_per_gpu({kH100.machine, kH100.words, 128}, h100_flops());
  });
  add("llama_8b_64_a100_tokens_per_gpu_calibrated", 2973, [] { return tokens_per_gpu(kA100, a100_flops()); });
  add("llama_70b_64_a100_tokens_per_gpu", 331, [] {
    return tokens_per_gpu({kA100.machine, kLlama70b + " --recompute block", 64}, a100_flops());
  });
  add("gpt_175b_128_a100_TFLOPs_calibrated", 173,
      [] { return tokens_per_gpu(kA100With175b, a100_flops_with_175b()) * 8 * 175e9 * 1e-12; });
  add("gpt_175b_512_a100_TFLOPs", 173, [] {
    return tokens_per_gpu({kA100With175b.machine, kGpt175b, 512}, a100_flops_with_175b()) * 8 * 175e9 * 1e-12;
  });
  add("zeropp_18b_384_v100_speedup_settings_ours", 2.16, [] {
    const Run run{"dgx-a100",
                  "--params 18b --units 48 --ranks-per-node 16 --sequence 1024",
                  384,
                  {{"inside_node", {{"bytes_per_second", 1e11}}},
                   {"between_nodes", {{"bytes_per_second", 1.1e10}}},
                   {"update_seconds_per_element", 28 / 8e11},
                   {"copy_bytes_per_second", 8e11}}};
    return tokens_per_gpu(run, 5e13, "--quantize both") / tokens_per_gpu(run, 5e13);
  });
  return true;
}();

}  // namespace
}  // namespace aliquot
