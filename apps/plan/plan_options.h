#pragma once
// What `aliquot plan` can be told.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/offload_options.h"
#include "apps/options/option_table.h"
#include "apps/options/shape_options.h"
#include "engine/plan/policy.h"
#include "optim/optimizer.h"
#include "sharding/topology.h"

namespace aliquot {

struct PlanOptions : ShapeOptions, OffloadOptions {
  std::optional<int64_t> params;  // instead of a model: so many, in equal units
  int64_t units = 32;

  int64_t ranks = 1;
  std::optional<int64_t> ranks_per_node;
  int64_t replicas = 1;
  std::string zero_stage = "3", stages;
  std::string precision = "fp32", gradients = "fp32", reduce_precision, master = "split", state = "fp32";
  std::string optimizer = "adamw";
  int64_t micro_batch = 4, accumulate = 1;
  std::optional<int64_t> sequence;
  std::string accumulate_into = "auto", gather = "auto";
  int64_t prefetch = 1, keep_gathered = 0, threads = 1;
  std::string recompute = "none";
  bool update_in_backward = false, reproducible = false;
  std::string quantize = "none";

  std::optional<int64_t> device_memory;
  std::string machine, profile;
  bool schedule = false;
  std::string trace;
  std::string format = "text";
};

/// The table of `aliquot plan`, bound to `options`, which must outlive it and stay where it is.
OptionTable plan_option_table(PlanOptions& options);

/// Stages asked for, in order.
std::vector<int> stages_of(const PlanOptions& options);
Policy policy_of(const PlanOptions& options, int zero_stage);
/// `on_gpus`: a GPU for every rank of a node.
Topology topology_of(const PlanOptions& options, bool on_gpus);

}  // namespace aliquot
