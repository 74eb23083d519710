// Predictions of aliquot plan for published runs with pipelines and without tensor parallelism. The names of the runs
// that calibrate a compute rate end in _calibrated. The published runs are:
//   Zero Bubble Pipeline Parallelism (Qi et al., 2023, arXiv 2401.10241): GPT models of Table 3 on up to 32 A100 with
//   Megatron-LM. Table 4 has throughputs, Table 5 calculated bubble rates, Table 9 measured times. Every layer is a
//   virtual stage of 1F1B-I, and the first and last pipeline stage have one layer less. The paper does not state the
//   vocabulary, the precision, whether the head is tied, and the rate of the network. We assume 50304 tokens, bf16, a
//   head of its own, and 200 Gbit/s per GPU. We compare our zero-bubble schedule, which is ZB-H1, with the throughput
//   of ZB-1p, because Table 5 gives both the same bubble rate in every setting;
//   NeMo (docs/source/performance/performance_summary.md, container 24.07): Llama 2 7B and 13B in fp8 on H100, 128
//   sequences of 4096 tokens, one per micro-batch; 7B on 8 GPUs without a pipeline, 13B on 16 GPUs with 4 pipeline
//   stages of 10 virtual stages. The page does not state how it shards the optimizer; we assume ZeRO stage 1;
//   GPipe (Huang et al., 2019, tables 2 and 3): speedups of a transformer over 2 devices with 32 micro-batches, with 48
//   layers on TPU v3 and with 24 layers on P100 without NVLink. The paper does not state the rates of the devices and
//   links, or which parts are partitioned; we assume rates, and a decoder with a head of 32000 tokens.
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <unistd.h>
#include <vector>

#include "bench/published.h"

namespace aliquot {
namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 3> kOrders = {"1f1b", "interleaved", "zero-bubble"};

/// A number of micro-batches with which the zero-bubble paper ran a model, and the results. The arrays have one element
/// for each order in kOrders.
struct Setting {
  int micro_batches;
  double forward_ms, backward_ms, transfer_ms;  // Table 9, by pipeline stage and micro-batch
  std::array<double, 3> samples;                // Table 4, per second and GPU
  std::array<double, 3> bubble;                 // Table 5
};

/// A model of the zero-bubble paper, with one GPU for each pipeline stage.
struct PaperModel {
  std::string name;
  int layers, heads, width, gpus, micro_batch;
  std::vector<Setting> settings;

  /// The layers of a pipeline stage, if embedding and head count as one layer each.
  int layers_per_stage() const { return (layers + 2) / gpus; }
};

const std::vector<PaperModel> kPaperModels = {
    {"1.5b",
     22,
     24,
     2304,
     8,
     6,
     {{24, 18.522, 18.086 + 9.337, 0.601, {11.8, 13.1, 12.9}, {0.2431, 0.1055, 0.1585}},
      {32, 18.513, 18.086 + 9.331, 0.626, {12.5, 13.4, 13.4}, {0.1985, 0.0818, 0.1242}},
      {64, 18.546, 18.097 + 9.321, 0.762, {13.6, 13.9, 14.2}, {0.1240, 0.0443, 0.0674}}}},
    {"6.2b",
     30,
     32,
     4096,
     8,
     3,
     {{24, 29.718, 29.444 + 19.927, 0.527, {3.50, 4.01, 3.88}, {0.2347, 0.0808, 0.1323}},
      {32, 29.802, 29.428 + 19.530, 0.577, {3.70, 4.08, 4.00}, {0.1898, 0.0628, 0.1045}},
      {64, 29.935, 29.621 + 19.388, 0.535, {4.03, 4.19, 4.20}, {0.1091, 0.0320, 0.0554}}}},
    {"14.6b",
     46,
     40,
     5120,
     16,
     1,
     {{48, 11.347, 11.248 + 8.132, 0.377, {1.40, 1.54, 1.61}, {0.2552, 0.1104, 0.1397}},
      {64, 11.307, 11.254 + 8.101, 0.379, {1.49, 1.59, 1.67}, {0.2082, 0.0852, 0.1088}},
      {128, 11.325, 11.308 + 8.109, 0.378, {1.64, 1.66, 1.76}, {0.1251, 0.0445, 0.0576}}}},
    {"28.3b",
     62,
     48,
     6144,
     32,
     1,
     {{96, 10.419, 10.207 + 7.715, 0.408, {0.76, 0.82, 0.87}, {0.2646, 0.1493, 0.1421}},
      {128, 10.408, 10.204 + 7.703, 0.408, {0.80, 0.85, 0.90}, {0.2168, 0.1164, 0.1106}},
      {256, 10.402, 10.248 + 7.698, 0.460, {0.88, 0.90, 0.96}, {0.1352, 0.0624, 0.0594}}}}};

constexpr int kTokens = 1024;                  // of a sequence, in all runs of the zero-bubble paper
constexpr double kNetworkPerGpu = 0.9 * 25e9;  // bytes/s; a GPU sends to the next node over its own adapter

/// Returns the number of uses of each virtual stage. The first virtual stage has two tables and layers. The last one
/// has layers, the last norm and the head. The others have only layers.
std::string cut_of(const PaperModel& model, int layers_per_virtual_stage) {
  const int count = (model.layers + 2) / layers_per_virtual_stage;
  std::string cut;
  for (int s = 0; s < count; ++s) {
    const int more = s == 0 || s + 1 == count ? 1 : 0;  // two uses take the place of one layer
    cut += fmt::format("{}{}", s == 0 ? "" : ",", layers_per_virtual_stage + more);
  }
  return cut;
}

PublishedRun run_of(const PaperModel& model, const Setting& setting, std::size_t order) {
  const bool interleaved = kOrders[order] == std::string("interleaved");
  std::string words = fmt::format(
      "--model gpt2-1.5b --layers {} --heads {} --width {} --hidden {} --context {} --vocab 50304 --tied off "
      "--zero-stage 0 --ranks-per-node 8 --pipeline {} --pipeline-schedule {} --pipeline-cut {} --micro-batch {} "
      "--accumulate {}",
      model.layers, model.heads, model.width, 4 * model.width, kTokens, model.gpus, kOrders[order],
      cut_of(model, interleaved ? 1 : model.layers_per_stage()), model.micro_batch, setting.micro_batches);
  if (interleaved) words += fmt::format(" --virtual-stages {}", model.layers_per_stage());
  return {"dgx-a100", words, model.gpus, {{"between_nodes", {{"bytes_per_second", kNetworkPerGpu}}}}};
}

/// Returns the compute rate with which the plan predicts 1F1B with the smallest number of micro-batches exactly.
double paper_flops(const PaperModel& model) {
  static std::map<std::string, double> known;
  const Setting& first = model.settings.front();
  if (!known.contains(model.name))
    known[model.name] = calibrated_flops(run_of(model, first, 0), kTokens * first.samples[0]);
  return known[model.name];
}

/// Writes the measured times of the paper as a --metrics file. All layers take equally long, and so do embedding and
/// head, because the paper treats all pipeline stages as equal.
void write_profile(const std::string& path, const PaperModel& model, const Setting& setting) {
  const int uses = model.layers + 4, position_table = 1, last_norm = model.layers + 2;
  std::vector<std::string> titles;
  std::vector<double> starts, ends;
  double now = 0;
  for (int i = 0; i < 2 * uses; ++i) {
    const bool forward = i < uses;
    const int use = forward ? i : 2 * uses - 1 - i;
    titles.push_back(fmt::format("{} {}", forward ? "forward" : "backward", use));
    starts.push_back(now);
    if (use != position_table && use != last_norm)
      now += 1e-3 * (forward ? setting.forward_ms : setting.backward_ms) / model.layers_per_stage();
    ends.push_back(now);
  }
  const Json step = {{"step", 1}, {"step_seconds", now}};
  std::ofstream file(path);
  file << Json{{"run", {{"options", nullptr}, {"plan", {{"step", {{"titles", titles}}}}}}}} << "\n";
  file << step << "\n" << step << "\n";
  file << Json{{"done", {{"step", {{"step_seconds", now}, {"start_seconds", starts}, {"end_seconds", ends}}}}}} << "\n";
}

/// Predicts a run from the measured times of the paper, with links that transfer a message in the measured time.
Json plan_from_times(const PaperModel& model, const Setting& setting, std::size_t order) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("aliquot-published-{}.jsonl", getpid());
  write_profile(path.string(), model, setting);
  PublishedRun run = run_of(model, setting, order);
  const double message_bytes = 2.0 * model.micro_batch * kTokens * model.width;
  const Json link = {{"bytes_per_second", message_bytes / (1e-3 * setting.transfer_ms)}, {"latency_seconds", 0}};
  run.rates = {{"inside_node", link}, {"between_nodes", link}};
  Json plan = predicted_plan(run, 1e14, "--profile " + path.string());
  std::filesystem::remove(path);
  return plan;
}

void add_setting(const PaperModel& model, const Setting& setting, std::size_t order) {
  const std::string name = fmt::format("zb_{}_{}_{}", model.name, setting.micro_batches, kOrders[order]);
  const bool calibrates = order == 0 && &setting == &model.settings.front();
  add_published(name + (calibrates ? "_calibrated" : ""), setting.samples[order], [&model, &setting, order] {
    return tokens_per_gpu(run_of(model, setting, order), paper_flops(model)) / kTokens;
  });
  add_published(name + "_from_times", setting.samples[order], [&model, &setting, order] {
    const double tokens = plan_from_times(model, setting, order)["tokens_per_second"].get<double>();
    return tokens / kTokens / model.gpus;
  });
  add_published(name + "_bubble", setting.bubble[order], [&model, &setting, order] {
    const Json stages = plan_from_times(model, setting, order)["stages"];
    return stages[stages.size() / 2]["idle_share"].get<double>();
  });
}

void add_nemo() {
  static const std::string llama = "--model llama-8b --vocab 32000 --zero-stage 1 --sequence 4096 --micro-batch 1 ";
  static const PublishedRun small{
      "dgx-h100", llama + "--layers 32 --width 4096 --heads 32 --kv-heads 32 --hidden 11008 --accumulate 16", 8};
  static const PublishedRun large{"dgx-h100",
                                  llama +
                                      "--layers 40 --width 5120 --heads 40 --kv-heads 40 --hidden 13824 "
                                      "--ranks-per-node 8 --pipeline 4 --pipeline-schedule interleaved "
                                      "--virtual-stages 10 --accumulate 32",
                                  16};
  static const auto flops = [] {
    static const double value = calibrated_flops(small, 16847);
    return value;
  };
  add_published("nemo_llama2_7b_8_h100_tokens_per_gpu_calibrated", 16847,
                [] { return tokens_per_gpu(small, flops()); });
  add_published("nemo_llama2_13b_16_h100_tokens_per_gpu", 8646, [] { return tokens_per_gpu(large, flops()); });
}

/// The throughput of GPipe on `devices` devices, relative to 2 devices.
double gpipe_speedup(int layers, double flops, double link, int devices) {
  const auto tokens = [&](int count) {
    const std::string words = fmt::format(
        "--model gpt2-1.5b --layers {} --width 2048 --heads 32 --hidden 8192 --context 1024 --vocab 32000 --tied off "
        "--zero-stage 0 --pipeline {} --pipeline-schedule gpipe --recompute block --micro-batch 1 --accumulate 32",
        layers, count);
    const PublishedRun run{"dgx-a100", words, count, {{"inside_node", {{"bytes_per_second", link}}}}};
    return count * tokens_per_gpu(run, flops);
  };
  return tokens(devices) / tokens(2);
}

const bool registered = [] {
  for (const PaperModel& model : kPaperModels) {
    for (std::size_t order = 0; order < kOrders.size(); ++order) {
      for (const Setting& setting : model.settings) add_setting(model, setting, order);
    }
  }
  add_nemo();
  const std::map<int, double> tpu = {{4, 3.4 / 1.8}, {8, 6.3 / 1.8}}, p100 = {{4, 1.8}, {8, 3.3}};
  for (const auto& [count, speedup] : tpu)
    add_published(fmt::format("gpipe_{}_tpu_speedup_settings_ours", count), speedup,
                  [=] { return gpipe_speedup(48, 3e13, 7e10, count); });
  for (const auto& [count, speedup] : p100)
    add_published(fmt::format("gpipe_{}_p100_speedup_settings_ours", count), speedup,
                  [=] { return gpipe_speedup(24, 8e12, 1e10, count); });
  return true;
}();

}  // namespace
}  // namespace aliquot
