#pragma once
// The options of `aliquot plan`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/mesh_option.h"
#include "apps/options/shape_options.h"
#include "engine/options/common_options.h"
#include "kernels/gemm/operand_rounding.h"
#include "sharding/topology.h"

namespace aliquot {

struct PlanOptions : ShapeOptions, CommonOptions {
  PlanOptions();

  std::optional<int64_t> params;  // a number of parameters in equal units, in place of a model
  int64_t units = 32;

  int64_t ranks = 1;
  std::optional<int64_t> ranks_per_node;
  std::optional<Topology> topology;  // of a world that exists; otherwise each node has `ranks_per_node` ranks
  MeshOption mesh;
  std::string stages, pipeline_order_from;
  int64_t micro_batch = 4;
  std::optional<int64_t> sequence, global_batch;
  OperandRounding products = OperandRounding::kNone;

  std::optional<int64_t> device_memory;
  std::string machine, profile;
  bool schedule = false;
  std::string pipeline_order;
  std::string trace, metrics;
  std::string format = "text";
};

/// The table of the options of `aliquot plan`. `options` must outlive it and must not move.
OptionTable plan_option_table(PlanOptions& options);

/// The value of one option, as a configuration file accepts it.
std::string option_text(PlanOptions options, std::string_view name);

/// Sets --precision to its default if it is not given: bf16 on GPUs, otherwise fp32. Throws UsageError if --attention
/// contradicts the machine or the precision.
void resolve_precision(PlanOptions& options, bool on_gpus);

/// --machine, or its default.
std::string machine_name(const PlanOptions& options);

/// The ZeRO stages to plan, in the order given.
std::vector<int> stages_of(const PlanOptions& options);
Policy policy_of(const PlanOptions& options, int zero_stage);
/// The number of ranks on each node: the maximum over the nodes.
int64_t ranks_per_node(const PlanOptions& options);
/// Returns PlanOptions::topology or, if it is not set, that of the planned run. With `on_gpus`, each rank of a node
/// then has its own GPU.
Topology topology_of(const PlanOptions& options, bool on_gpus);

}  // namespace aliquot
