#include "apps/plan/pipeline_figures.h"

#include <utility>

#include "engine/plan/pipeline.h"

namespace aliquot {
namespace {

int64_t parameters_here(const Plan& plan) {
  int64_t count = 0;
  for (std::size_t unit = 0; unit < plan.model.units.size(); ++unit) {
    if (!plan.unit_is_here[unit]) continue;
    for (const ParameterSpec& parameter : plan.model.units[unit].parameters) count += parameter.tensor.element_count();
  }
  return count;
}

int activations_in_flight(const Plan& plan, std::vector<PipelineAction> actions) {
  if (plan.stage.tied_ends) std::erase_if(actions, [](const PipelineAction& action) { return action.stage == 0; });
  return max_in_flight(actions);
}

}  // namespace

std::vector<StageFigures> stage_figures(const PlannedRun& outcome) {
  const Plan& first = outcome.stages.front();
  const std::vector<StagePasses> passes = stage_passes(first.policy, first.stage);
  std::vector<StageFigures> all;
  for (std::size_t s = 0; s < outcome.stages.size(); ++s) {
    const Plan& plan = outcome.stages[s];
    const Timeline& timeline = outcome.timelines[s];
    const double step = timeline.step_seconds > 0 ? timeline.step_seconds : 1;
    all.push_back({.index = plan.stage.index,
                   .use_count = plan.stage.use_count(),
                   .parameter_count = parameters_here(plan),
                   .peak_bytes = account(plan.schedule).peak_bytes,
                   .activations_in_flight = activations_in_flight(plan, passes[s].actions),
                   .compute_seconds = timeline.compute_seconds,
                   .bubble_share = timeline.idle_share(),
                   .transfer_share = timeline.transfer_seconds / step,
                   .node_link_share = timeline.link_seconds / step});
  }
  return all;
}

double bubble_share(const PlannedRun& outcome) {
  double sum = 0;
  for (const Timeline& timeline : outcome.timelines) sum += timeline.idle_share();
  return sum / static_cast<double>(outcome.timelines.size());
}

std::optional<BubbleFormula> bubble_formula(const Policy& policy) {
  if (policy.pipeline == 1 || !policy.pass_order.empty()) return std::nullopt;
  const double waits = policy.pipeline - 1, micro_batches = policy.micro_batch_count;
  if (policy.pipeline_schedule == PipelineSchedule::kInterleaved) {
    if (policy.micro_batch_count % policy.pipeline != 0) return std::nullopt;
    return BubbleFormula{"(p - 1) / (v m + p - 1)", waits / (policy.virtual_stages * micro_batches + waits)};
  }
  if (policy.pipeline_schedule == PipelineSchedule::kZeroBubble) {
    if (policy.micro_batch_count < policy.pipeline) return std::nullopt;
    return BubbleFormula{"(p - 1) / (3 m + p - 1)", waits / (3 * micro_batches + waits)};
  }
  if (policy.pipeline_schedule != PipelineSchedule::kGpipe && policy.pipeline_schedule != PipelineSchedule::k1F1B)
    return std::nullopt;
  return BubbleFormula{"(p - 1) / (m + p - 1)", waits / (micro_batches + waits)};
}

}  // namespace aliquot
