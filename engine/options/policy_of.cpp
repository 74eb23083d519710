#include "engine/options/policy_of.h"

#include <algorithm>

namespace aliquot {
namespace {

/// Returns the number of virtual stages per pipeline stage, from the largest virtual stage in the actions.
int virtual_stages_of(const PassOrder& order, int pipeline) {
  int32_t last = 0;
  for (const auto& actions : order) {
    for (const PipelineAction& action : actions) last = std::max(last, action.stage);
  }
  return last / pipeline + 1;
}

}  // namespace

Policy policy_of(const EngineOptions& options) {
  Policy policy;
  // The structured binding lists all fields of Policy, so that a new field does not compile until it is handled here.
  auto& [zero_stage, replica_count, precision, micro_batch_count, tensor, pipeline, pipeline_schedule, virtual_stages,
         pipeline_cut, pass_order, pass_times, accumulate_into, prefetch, keep_gathered, gather_for, recompute,
         recompute_by_stage, gather, offload_state, offload_parameters, update_in_backward, reproducible,
         quantize_weights, quantize_gradients, state_bytes_per_block, matrix_updates, between_steps_bytes, check_state,
         replay_every, check, evaluation, replay] = policy;
  zero_stage = options.zero_stage;
  replica_count = options.replicas;
  precision = options.precision;
  micro_batch_count = options.accumulate;
  tensor = options.tensor;
  pipeline = options.pipeline;
  pipeline_schedule = options.pipeline_schedule;
  virtual_stages = options.virtual_stages;
  if (virtual_stages == 0 && pipeline > 1 && !options.pass_order.empty())
    virtual_stages = virtual_stages_of(options.pass_order, pipeline);
  if (virtual_stages == 0) virtual_stages = pipeline > 1 && pipeline_schedule == PipelineSchedule::kInterleaved ? 2 : 1;
  pipeline_cut = options.pipeline_cut;
  pass_order = options.pass_order;
  pass_times = {};  // depends on the cut
  accumulate_into = options.accumulate_into;
  prefetch = options.prefetch;
  keep_gathered = options.keep_gathered;
  gather_for = options.gather_for;
  recompute = options.recompute;
  gather = options.gather;
  offload_state = options.offload_state;
  offload_parameters = options.offload_parameters;
  update_in_backward = options.update_in_backward;
  reproducible = options.reproducible;
  quantize_weights = options.quantize_weights;
  quantize_gradients = options.quantize_gradients;
  between_steps_bytes = options.between_steps_bytes;
  check_state = options.check_state;
  replay_every = options.replay_every;
  check = options.check;
  apply_optimizer(policy, options.optimizer, options.moments);
  return policy;
}

}  // namespace aliquot
