#include "apps/plan/plan_options.h"

#include <algorithm>

#include "apps/options/pipeline_order.h"
#include "apps/options/products_option.h"
#include "engine/options/policy_of.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr IntegerRange kPositive{1, int64_t{1} << 62};
constexpr IntegerRange kExtentRange{1, int64_t{1} << 31};

void add_model(OptionTable& t, PlanOptions& o) {
  t.heading("Model");
  add_shape_options(t, o);
  t.count("params", o.params, kPositive, "A number of parameters in place of a model, such as 7.5b.");
  t.count("units", o.units, {1, 1 << 20}, "Number of equal units with --params.");
}

void add_sharding(OptionTable& t, PlanOptions& o, const OptionTable& common) {
  t.heading("Sharding");
  t.count("ranks", o.ranks, {1, 1 << 20}, "Number of ranks.");
  t.count("ranks-per-node", o.ranks_per_node, {1, 1 << 20}, "Ranks on each node; default --ranks, at most 8.");
  t.add(common, {"replicas", "zero-stage", "pipeline", "pipeline-schedule", "virtual-stages", "pipeline-cut"});
  add_pipeline_order_from(t, o.pipeline_order_from, o.engine.pass_order);
  t.add(common, {"tensor"});
  add_mesh(t, o.mesh);
  add_sequence_parallel(t, o);
  t.text("stages", "all|LIST", o.stages, "Compare several ZeRO stages: all, or a list such as 1,3.");
  t.add(common, {"accumulate-into", "prefetch", "keep-gathered", "gather-for"});
  t.add(common, "recompute",
        "Uses whose forward pass is repeated in backward; auto: as few as --memory-budget requires, else none.");
  t.add(common, {"gather", "offload", "offload-parameters"});
  t.add(common, "update-in-backward", "Update a unit as soon as its gradient is reduced.");
  t.add(common, {"quantize", "reproducible"});
  t.heading("Precision and optimizer");
  t.add(common, "precision", "Data type of the computation; default: bf16 if --machine has GPUs, otherwise fp32.");
  add_products(t, o.products);
  add_attention(t, o);
  t.add(common, {"gradients", "reduce-precision", "master", "state", "optimizer"});
}

}  // namespace

PlanOptions::PlanOptions() {
  world.threads_per_rank = 1;
  engine.recompute = kRecomputeAsNeeded;
}

void resolve_precision(PlanOptions& options, bool on_gpus) {
  if (!options.precision) options.precision = on_gpus ? DType::kBFloat16 : DType::kFloat32;
  if (options.attention == AttentionKernels::kCudnn && (!on_gpus || options.precision == DType::kFloat32))
    throw UsageError("--attention cudnn needs a --machine with GPUs and --precision bf16 or fp16.");
}

std::string option_text(PlanOptions options, std::string_view name) {
  return text_of(plan_option_table(options).find(name)->get());
}

OptionTable plan_option_table(PlanOptions& o) {
  const OptionTable common = common_option_table(o);
  OptionTable t;
  add_model(t, o);
  add_sharding(t, o, common);
  t.heading("Batch");
  t.count("micro-batch", o.micro_batch, {1, 1 << 20}, "Sequences that a rank computes at once.");
  t.add(common, {"accumulate"});
  t.count("global-batch", o.global_batch, kPositive, "Sequences per step over all ranks; determines --accumulate.");
  t.count("sequence", o.sequence, kExtentRange,
          "Tokens per sequence; default: the model's context, 1024 with --params.");
  t.add(common, "threads",
        "Host threads of a rank, each with its own scratch memory; default 1 (in train: cores / ranks).");
  t.heading("Memory");
  t.add(common, "memory-budget",
        "Maximum memory per rank. As in train, options are chosen that fit and do not change results.");
  t.add(common, {"nccl-staging"});
  t.bytes("device-memory", o.device_memory,
          "Memory per rank, in place of that of --machine: --pipeline-schedule auto chooses a schedule that fits. Also "
          "prints the size of the largest model that fits.");
  t.heading("Output");
  t.text("machine", "host|dgx-a100|dgx-h100|dgx-h200|FILE", o.machine,
         "Simulate a step with the rates of a named machine, or of a JSON file from aliquot doctor --measure. Default "
         "with --pipeline: host.");
  t.text("profile", "FILE", o.profile,
         "Use measured times of forward and backward from the --metrics file of a run of this model on one rank.");
  t.toggle("schedule", o.schedule, "List the operations of the schedule.");
  t.text("pipeline-order", "FILE", o.pipeline_order,
         "Write the order of passes of all pipeline stages, for --pipeline-order-from.");
  t.text("trace", "FILE", o.trace,
         "Write a trace of the simulated step for Perfetto, with all pipeline stages. Of several ZeRO stages, the last "
         "one is traced.");
  t.text("metrics", "FILE", o.metrics, "Write the plans and the simulated step of a pipeline, for aliquot report.");
  t.choice("format", o.format, {"text", "json", "csv"}, "Format of the output.");
  return t;
}

std::string machine_name(const PlanOptions& o) { return o.machine.empty() ? "host" : o.machine; }

std::vector<int> stages_of(const PlanOptions& o) {
  if (o.stages.empty()) return {o.engine.zero_stage};
  if (o.stages == "all") return {0, 1, 2, 3};
  std::vector<int> stages;
  for (std::size_t at = 0; at < o.stages.size(); at += 2) {
    const bool digit = o.stages[at] >= '0' && o.stages[at] <= '3';
    const bool ends = at + 1 == o.stages.size();
    if (!digit || (!ends && (o.stages[at + 1] != ',' || at + 2 == o.stages.size())))
      throw UsageError("invalid value '" + o.stages + "' for --stages: expected all, or a list such as 1,3.");
    stages.push_back(o.stages[at] - '0');
  }
  return stages;
}

Policy policy_of(const PlanOptions& o, int zero_stage) {
  EngineOptions options = o.engine_options();
  options.zero_stage = zero_stage;
  return policy_of(options);
}

int64_t ranks_per_node(const PlanOptions& o) { return o.ranks_per_node.value_or(std::min<int64_t>(o.ranks, 8)); }

Topology topology_of(const PlanOptions& o, bool on_gpus) {
  if (o.topology) return *o.topology;
  const auto per_node = static_cast<int>(ranks_per_node(o));
  Topology topology = Topology::one_host(static_cast<int>(o.ranks));
  topology.over_nccl = on_gpus && o.ranks > 1;
  topology.nccl_staging_bytes = o.world.nccl.staging_bytes;
  for (int r = 0; r < static_cast<int>(o.ranks); ++r) {
    topology.node_of_rank[r] = r / per_node;
    if (on_gpus) topology.gpu_of_rank[r] = r % per_node;
  }
  return topology;
}

}  // namespace aliquot
