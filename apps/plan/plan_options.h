#pragma once
// What `aliquot plan` can be told.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/shape_options.h"
#include "engine/options/common_options.h"
#include "sharding/topology.h"

namespace aliquot {

struct PlanOptions : ShapeOptions, CommonOptions {
  PlanOptions();

  std::optional<int64_t> params;  // instead of a model: so many, in equal units
  int64_t units = 32;

  int64_t ranks = 1;
  std::optional<int64_t> ranks_per_node;
  std::string stages;
  int64_t micro_batch = 4;
  std::optional<int64_t> sequence;

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
