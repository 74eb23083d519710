#include <algorithm>
#include <bit>
#include <fmt/format.h>

#include "engine/schedule.h"
#include "engine/writer.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

void refuse_what_does_not_compose(const ModelSpec& model, const Policy& policy) {
  if (policy.zero_stage < 0 || policy.zero_stage > 3) {
    throw UsageError(
        fmt::format("there is no ZeRO stage {}: 0 shards nothing, 1 optimizer state, 2 gradients too, 3 parameters too",
                    policy.zero_stage));
  }
  if (policy.micro_batch_count < 1) throw UsageError("a step needs at least one micro-batch");
  if (policy.prefetch < 0 || policy.keep_gathered < 0)
    throw UsageError("prefetch and keep-gathered are counts of 0 or more");
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.tensor.dtype != DType::kFloat32) {
        throw UsageError(fmt::format("parameter {} is {}; the engine trains float32 parameters", parameter.tensor.name,
                                     name(parameter.tensor.dtype)));
      }
    }
  }
}

/// Kernels that write their gradients cannot follow another that left its own in the same place.
void refuse_overwritten_gradients(const ModelSpec& model, bool into_shard, int micro_batch_count) {
  std::vector<int> use_count(model.units.size(), 0);
  for (const auto& use : model.uses) {
    for (const UnitId unit : use) ++use_count[unit];
  }
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (model.units[u].gradients == GradientMode::kAdd) continue;
    if (use_count[u] > 1) {
      throw UsageError(fmt::format("unit {} is used {} times in a pass, so its gradient kernels must add, not assign",
                                   model.units[u].name, use_count[u]));
    }
    if (!into_shard && micro_batch_count > 1) {
      throw UsageError(fmt::format("unit {} assigns its gradients: accumulate into the shard, or let its kernels add",
                                   model.units[u].name));
    }
  }
}

bool can_view(const Topology& topology) {
  const bool on_hosts =
      std::all_of(topology.gpu_of_rank.begin(), topology.gpu_of_rank.end(), [](int gpu) { return gpu < 0; });
  return topology.one_node() && on_hosts;
}

Schedule resolve(const ModelSpec& model, const Policy& policy, const Topology& topology) {
  Schedule schedule;
  schedule.zero_stage = policy.zero_stage;
  schedule.micro_batch_count = policy.micro_batch_count;
  const bool wants_shard = policy.accumulate_into == AccumulateInto::kAuto
                               ? policy.zero_stage >= 2
                               : policy.accumulate_into == AccumulateInto::kShard;
  schedule.accumulate_into_shard = wants_shard && policy.micro_batch_count > 1;
  refuse_overwritten_gradients(model, wants_shard, policy.micro_batch_count);
  if (policy.gather == GatherMode::kView && !can_view(topology)) {
    throw UsageError("--gather view needs all ranks on one host; use copy, or auto");
  }
  schedule.view = policy.zero_stage == 3 && policy.gather != GatherMode::kCopy && can_view(topology);
  return schedule;
}

}  // namespace

int64_t norm_part_bytes(const std::vector<FlatSpec>& flats) {
  // A whole tensor is one subtree. A shard cuts a tensor at either end into at most one subtree a level, and no subtree
  // is less than a block.
  int64_t node_count = 0;
  for (const FlatSpec& flat : flats) {
    if (!flat.trainable) continue;
    const int64_t blocks = flat.layout.shard_count() / kBlockElements;
    const auto levels = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(blocks)));
    node_count += std::min(blocks, static_cast<int64_t>(flat.layout.tensors().size()) + 2 * levels);
  }
  return node_count * static_cast<int64_t>(sizeof(double));
}

Plan plan(const ModelSpec& model, const Policy& policy, const Topology& topology) {
  model.check();
  refuse_what_does_not_compose(model, policy);
  Plan plan{model, policy, topology, flats(model, topology.rank_count()), {}, resolve(model, policy, topology)};
  plan.flats_of_unit.resize(model.units.size());
  for (std::size_t f = 0; f < plan.flats.size(); ++f)
    plan.flats_of_unit[plan.flats[f].unit].push_back(static_cast<int32_t>(f));
  place(write(plan), plan.schedule, topology.rank_count());
  prune(plan.schedule.operations);
  return plan;
}

}  // namespace aliquot
