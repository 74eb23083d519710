#include "apps/plan/plan_options.h"

#include <algorithm>

#include "apps/train/quantize_words.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr WholeRange kFromOne{1, int64_t{1} << 62};
constexpr WholeRange kExtent{1, int64_t{1} << 31};

void add_model(OptionTable& t, PlanOptions& o) {
  t.heading("Model");
  add_shape_options(t, o);
  t.count("params", o.params, kFromOne, "Instead of a model: so many parameters, 7.5b.");
  t.count("units", o.units, {1, 1 << 20}, "Equal units that --params are in.");
}

void add_sharding(OptionTable& t, PlanOptions& o) {
  t.heading("Sharding");
  t.count("ranks", o.ranks, {1, 1 << 20}, "Ranks that share the model.");
  t.count("ranks-per-node", o.ranks_per_node, {1, 1 << 20}, "Default all of them, at most 8.");
  t.count("replicas", o.replicas, {1, 1 << 20}, "Groups of ranks that each hold one whole model.");
  t.choice("zero-stage", o.zero_stage, {"0", "1", "2", "3"}, "What is sharded.");
  t.text("stages", "all|LIST", o.stages, "Several stages instead: all, or as in 1,3.");
  t.choice("accumulate-into", o.accumulate_into, {"auto", "full", "shard"}, "Where micro-batches are summed.");
  t.count("prefetch", o.prefetch, {0, 1024}, "How many units ahead are gathered.");
  t.count("keep-gathered", o.keep_gathered, {0, 1 << 20}, "How many units stay whole after forward.");
  t.choice("recompute", o.recompute, {"none", "block"}, "What runs forward again in backward.");
  t.choice("gather", o.gather, {"auto", "view", "copy"}, "How one host's ranks see each other's shards.");
  add_offload_options(t, o);
  t.toggle("update-in-backward", o.update_in_backward, "Update a unit as soon as its gradient is reduced.");
  t.choice("quantize", o.quantize, {"none", "weights", "gradients", "both"},
           "8-bit weights and gradients between nodes.");
  t.toggle("reproducible", o.reproducible, "The same bits on any power of two of ranks.");
}

void add_precision(OptionTable& t, PlanOptions& o) {
  t.heading("Precision and optimizer");
  t.choice("precision", o.precision, {"fp32", "bf16", "fp16"}, "What is computed in.");
  t.choice("gradients", o.gradients, {"fp32", "bf16"}, "What gradients are accumulated in.");
  t.choice("reduce-precision", o.reduce_precision, {"", "fp32", "bf16"}, "What they are sent in; default the same.");
  t.choice("master", o.master, {"split", "fp32"}, "How the fp32 master is kept beside bf16.");
  t.choice("state", o.state, {"fp32", "bf16"}, "What optimizer moments are kept in.");
  t.choice("optimizer", o.optimizer, {"adamw", "adam", "adamw8bit", "lion", "sgd", "muon"}, "The update rule.");
}

Optimizer optimizer_of(const std::string& name) {
  if (name == "adam") return Adam{};
  if (name == "adamw8bit") return AdamW8bit{};
  if (name == "lion") return Lion{};
  if (name == "sgd") return Sgd{};
  if (name == "muon") return Muon{};
  return AdamW{};
}

}  // namespace

OptionTable plan_option_table(PlanOptions& o) {
  OptionTable t;
  add_model(t, o);
  add_sharding(t, o);
  add_precision(t, o);
  t.heading("Batch");
  t.count("micro-batch", o.micro_batch, {1, 1 << 20}, "Sequences a rank takes at once.");
  t.count("accumulate", o.accumulate, {1, 1 << 20}, "Micro-batches a step.");
  t.count("sequence", o.sequence, kExtent, "Tokens in one; default the context.");
  t.count("threads", o.threads, {1, 4096},
          "Host threads a rank, which have scratch each: 1 here, in train the cores / ranks.");
  t.heading("What to say");
  t.bytes("device-memory", o.device_memory, "Of a rank: names the largest model of this kind that fits.");
  t.text("machine", "NAME|FILE", o.machine,
         "Rates to simulate a step with: host, dgx-a100, dgx-h100, dgx-h200, or a file.");
  t.text("profile", "FILE", o.profile,
         "What forward and backward take: the --metrics of such a model's run on one rank, instead of rates.");
  t.toggle("schedule", o.schedule, "List the operations.");
  t.text("trace", "FILE", o.trace, "Write the simulated step, for chrome://tracing; of the last stage.");
  t.choice("format", o.format, {"text", "json", "csv"}, "Of what is printed.");
  return t;
}

std::vector<int> stages_of(const PlanOptions& o) {
  if (o.stages.empty()) return {o.zero_stage.front() - '0'};
  if (o.stages == "all") return {0, 1, 2, 3};
  std::vector<int> stages;
  for (std::size_t at = 0; at < o.stages.size(); at += 2) {
    const bool digit = o.stages[at] >= '0' && o.stages[at] <= '3';
    const bool ends = at + 1 == o.stages.size();
    if (!digit || (!ends && (o.stages[at + 1] != ',' || at + 2 == o.stages.size())))
      throw UsageError("--stages " + o.stages + ": give all, or stages with commas between, as in 1,3.");
    stages.push_back(o.stages[at] - '0');
  }
  return stages;
}

Policy policy_of(const PlanOptions& o, int zero_stage) {
  Policy policy;
  policy.zero_stage = zero_stage;
  policy.replica_count = static_cast<int>(o.replicas);
  policy.precision.compute = parse_dtype(o.precision);
  policy.precision.gradients = parse_dtype(o.gradients);
  if (!o.reduce_precision.empty()) policy.precision.reduce = parse_dtype(o.reduce_precision);
  policy.precision.master = o.master == "split" ? MasterForm::kSplit : MasterForm::kWhole;
  policy.micro_batch_count = static_cast<int>(o.accumulate);
  policy.accumulate_into = o.accumulate_into == "full"    ? AccumulateInto::kFull
                           : o.accumulate_into == "shard" ? AccumulateInto::kShard
                                                          : AccumulateInto::kAuto;
  policy.prefetch = static_cast<int>(o.prefetch);
  policy.keep_gathered = static_cast<int>(o.keep_gathered);
  policy.recompute = *recompute_count(o.recompute);
  policy.gather = o.gather == "view" ? GatherMode::kView : o.gather == "copy" ? GatherMode::kCopy : GatherMode::kAuto;
  policy.offload_state = offload_kind(o.offload);
  policy.offload_parameters = offload_kind(o.offload_parameters);
  policy.update_in_backward = o.update_in_backward;
  policy.reproducible = o.reproducible;
  policy.quantize_weights = quantized(o.quantize).weights;
  policy.quantize_gradients = quantized(o.quantize).gradients;
  take_optimizer(policy, optimizer_of(o.optimizer), parse_dtype(o.state));
  return policy;
}

Topology topology_of(const PlanOptions& o, bool on_gpus) {
  const auto per_node = static_cast<int>(o.ranks_per_node.value_or(std::min<int64_t>(o.ranks, 8)));
  Topology topology = Topology::one_host(static_cast<int>(o.ranks));
  for (int r = 0; r < static_cast<int>(o.ranks); ++r) {
    topology.node_of_rank[r] = r / per_node;
    if (on_gpus) topology.gpu_of_rank[r] = r % per_node;
  }
  return topology;
}

}  // namespace aliquot
