// Predictions of aliquot plan for published runs without pipelines, on machines that are not available here. Except for
// ZeRO++, each publication and kind of GPU has a compute rate, which is chosen so that the plan predicts one run
// exactly. The names of these runs end in _calibrated. The plan then predicts the other runs with the same rate. The
// published runs are:
//   torchtitan (benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3), FSDP2: Llama 3.1 8B on H100 with
//   400 Gbit/s per GPU, 2 sequences of 8192 tokens per GPU, selective recomputation, with and without torch.compile;
//   torchtitan (docs/performance.md), FSDP2 on 64 A100: Llama 3 8B and 70B, 1 sequence of 8192 tokens per GPU, 8B with
//   selective and 70B with full recomputation; Llama 2 13B and 70B, 2 sequences of 4096 tokens per GPU, 13B without and
//   70B with full recomputation. The pages do not state the links between the nodes with A100;
//   FSDP (Zhao et al., 2023): GPT-175B on A100 with 200 Gbit/s per GPU, 1 sequence of 2048 tokens per GPU, full
//   recomputation, linear scaling to 512 GPUs;
//   ZeRO++ (Wang et al., 2023): up to 2.16 times the throughput of ZeRO-3 on 384 V100. The paper does not state the
//   other settings. We assume 18 billion parameters, 1024 tokens and 5e13 operations/s per GPU, 16 GPUs and
//   100 Gbit/s per node.
#include "bench/published.h"

namespace aliquot {
namespace {

const std::string kLlama8b = "--model llama-8b --ranks-per-node 8 --sequence 8192";
const std::string kLlama70b =
    "--model llama-8b --layers 80 --width 8192 --heads 64 --kv-heads 8 --hidden 28672 --ranks-per-node 8 "
    "--recompute block";
const std::string kLlama13b =
    "--model llama-8b --layers 40 --width 5120 --heads 40 --kv-heads 40 --hidden 13824 --vocab 32000 "
    "--ranks-per-node 8 --sequence 4096 --micro-batch 2";
const std::string kGpt175b =
    "--model gpt2-1.5b --layers 96 --width 12288 --heads 96 --hidden 49152 --context 2048 --vocab 50000 "
    "--ranks-per-node 8 "
    "--recompute block";

const PublishedRun kH100{"dgx-h100", kLlama8b + " --micro-batch 2", 8};
const PublishedRun kA100{"dgx-a100", kLlama8b, 64};
const PublishedRun kA100WithLlama2{"dgx-a100", kLlama13b, 64};
const PublishedRun kA100With175b{"dgx-a100", kGpt175b, 128};

double compiled_h100_flops() {
  static const double flops = calibrated_flops(kH100, 6667);
  return flops;
}
double h100_flops() {
  static const double flops = calibrated_flops(kH100, 5762);
  return flops;
}
double a100_flops() {
  static const double flops = calibrated_flops(kA100, 2973);
  return flops;
}
double a100_flops_with_llama2() {
  static const double flops = calibrated_flops(kA100WithLlama2, 2162);
  return flops;
}
/// The paper reports 173 TFLOP/s per GPU. With full recomputation it counts 8 operations per parameter and token, so
/// this is 124 tokens/s per GPU.
double a100_flops_with_175b() {
  static const double flops = calibrated_flops(kA100With175b, 173e12 / (8 * 175e9));
  return flops;
}

void add_torchtitan() {
  const PublishedRun many_h100{kH100.machine, kH100.words, 128};
  add_published("llama_8b_8_h100_compiled_tokens_per_gpu_calibrated", 6667,
                [] { return tokens_per_gpu(kH100, compiled_h100_flops()); });
  add_published("llama_8b_128_h100_compiled_tokens_per_gpu", 6514,
                [=] { return tokens_per_gpu(many_h100, compiled_h100_flops()); });
  add_published("llama_8b_8_h100_tokens_per_gpu_calibrated", 5762, [] { return tokens_per_gpu(kH100, h100_flops()); });
  add_published("llama_8b_128_h100_tokens_per_gpu", 5605, [=] { return tokens_per_gpu(many_h100, h100_flops()); });
  add_published("llama_8b_64_a100_tokens_per_gpu_calibrated", 2973, [] { return tokens_per_gpu(kA100, a100_flops()); });
  add_published("llama_70b_64_a100_tokens_per_gpu", 331, [] {
    return tokens_per_gpu({kA100.machine, kLlama70b + " --sequence 8192", 64}, a100_flops());
  });
  add_published("llama2_13b_64_a100_tokens_per_gpu_calibrated", 2162,
                [] { return tokens_per_gpu(kA100WithLlama2, a100_flops_with_llama2()); });
  add_published("llama2_70b_64_a100_tokens_per_gpu", 353, [] {
    return tokens_per_gpu({kA100.machine, kLlama70b + " --vocab 32000 --sequence 4096 --micro-batch 2", 64},
                          a100_flops_with_llama2());
  });
}

const bool registered = [] {
  add_torchtitan();
  add_published("gpt_175b_128_a100_TFLOPs_calibrated", 173,
                [] { return tokens_per_gpu(kA100With175b, a100_flops_with_175b()) * 8 * 175e9 * 1e-12; });
  add_published("gpt_175b_512_a100_TFLOPs", 173, [] {
    return tokens_per_gpu({kA100With175b.machine, kGpt175b, 512}, a100_flops_with_175b()) * 8 * 175e9 * 1e-12;
  });
  add_published("zeropp_18b_384_v100_speedup_settings_ours", 2.16, [] {
    const PublishedRun run{"dgx-a100",
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
