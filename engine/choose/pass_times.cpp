#include "engine/choose/pass_times.h"

#include <algorithm>
#include <cmath>

#include "engine/cost/link_prices.h"
#include "engine/plan/pipeline.h"
#include "engine/plan/sizes.h"

namespace aliquot {
namespace {

int64_t nanoseconds(double seconds) {
  constexpr double kMost = 1e13;  // about 3 hours; the sum over all passes of a step must fit into int64_t
  const double exact = 1e9 * seconds;
  return exact >= 1 ? std::llround(std::min(exact, kMost)) : 1;
}

PassTimes times_of(const VirtualStage& run, const ModelSpec& model, const std::vector<bool>& recomputed,
                   const CostModel& cost) {
  double forward = 0, backward = 0, backward_input = 0, backward_weights = 0;
  for (int32_t use = run.first_use; use < run.end_use; ++use) {
    const auto seconds = [&](Verb verb) { return model_seconds(model, cost, use, verb); };
    const double again = recomputed[use] ? seconds(Verb::kRecompute) : 0;
    forward += seconds(Verb::kForward);
    backward += again + seconds(Verb::kBackward);
    backward_input += again + seconds(Verb::kBackwardInput);
    backward_weights += seconds(Verb::kBackwardWeights);
  }
  return {nanoseconds(forward), nanoseconds(backward), nanoseconds(backward_input), nanoseconds(backward_weights)};
}

/// Returns the time to send `bytes` to the next pipeline stage, or to the previous one, while ranks may also compute.
int64_t send_time(const PipelineStage& stage, bool to_next, int64_t bytes, const Topology& world,
                  const CostModel& cost) {
  const int other = (stage.index + (to_next ? 1 : stage.count - 1)) % stage.count;
  const Price price = transfer_price(cost, {world, world.rank_count() / stage.count, stage.index, other}, bytes);
  return nanoseconds(std::max(price.seconds, price.seconds_while_computing));
}

}  // namespace

StagePassTimes pass_times_of(const ModelSpec& model, const Policy& policy, const Topology& world,
                             const CostModel& cost) {
  if (policy.pipeline == 1) return {};
  check_uses(model, cost);
  const std::vector<PipelineStage> stages = pipeline_stages(model, policy);
  StagePassTimes times(static_cast<std::size_t>(stages.front().run_count));
  for (const PipelineStage& stage : stages) {
    const std::vector<bool> recomputed = recomputed_uses(model, policy, stage);
    for (const VirtualStage& run : stage.runs) {
      PassTimes& of = times[static_cast<std::size_t>(run.index)] = times_of(run, model, recomputed, cost);
      const int64_t output_bytes = declared_bytes(model, Role::kOutputActivations, run.last_use());
      if (!stage.is_last(run)) of.send_activations = send_time(stage, true, output_bytes, world, cost);
      if (!run.is_first()) of.send_gradients = send_time(stage, false, model.activations.backward_bytes, world, cost);
    }
  }
  return times;
}

void Planner::set_pass_times(Policy& policy) const {
  policy.pass_times.clear();  // they may belong to another cut
  if (timed) policy.pass_times = pass_times_of(model, policy, topology, cost);
}

std::vector<Plan> Planner::plan(Policy policy) const {
  set_pass_times(policy);
  return plan_pipeline(model, policy, topology);
}

Plan Planner::plan_stage(Policy policy, int stage) const {
  set_pass_times(policy);
  return aliquot::plan_stage(model, policy, topology, stage);
}

}  // namespace aliquot
