#include "apps/plan/mesh_bound.h"

#include <algorithm>

#include "apps/plan/planned_run.h"
#include "apps/plan/stage_bound.h"
#include "engine/plan/pipeline.h"

namespace aliquot {

MeshBounds::MeshBounds(const PlanOptions& options, const Machine& machine, int64_t limit_bytes)
    : options_(options),
      machine_(machine),
      limit_bytes_(limit_bytes),
      topology_(topology_of(options, machine.has_gpus)) {}

const MeshModel& MeshBounds::model(int tensor, int64_t micro_batch) {
  auto& found = models_[{tensor, micro_batch}];
  if (!found) {
    PlanOptions options = options_;
    options.engine.tensor = tensor;
    options.micro_batch = micro_batch;
    found = std::make_unique<MeshModel>(mesh_model(options, machine_));
  }
  return *found;
}

Policy MeshBounds::policy(const MeshChoice& choice, bool with_cut) {
  Policy made = policy_of(with_choice(options_, choice), choice.zero_stage);
  if (with_cut) made.pipeline_cut = cut(choice);
  return made;
}

const PipelineCut& MeshBounds::cut(const MeshChoice& choice) {
  stages(choice);
  return cuts_.at({{choice.mesh.tensor, choice.micro_batch}, {choice.mesh.pipeline, choice.virtual_stages}}).first;
}

const std::vector<PipelineStage>& MeshBounds::stages(const MeshChoice& choice) {
  const CutKey key{{choice.mesh.tensor, choice.micro_batch}, {choice.mesh.pipeline, choice.virtual_stages}};
  if (const auto found = cuts_.find(key); found != cuts_.end()) return found->second.second;
  const MeshModel& of = model(choice.mesh.tensor, choice.micro_batch);
  Policy with_cut = policy(choice, false);
  if (choice.mesh.pipeline > 1 && with_cut.pipeline_cut.empty())
    with_cut.pipeline_cut = cut_pipeline(of.model, with_cut, of.cost);
  std::vector<PipelineStage> made = pipeline_stages(of.model, with_cut);
  return cuts_.emplace(key, std::pair(std::move(with_cut.pipeline_cut), std::move(made))).first->second.second;
}

const InterNodeGroups& MeshBounds::groups(const Mesh& mesh, int stage) {
  auto& found = groups_[{mesh.pipeline, mesh.replica, mesh.shard, mesh.tensor, stage}];
  if (!found) found = std::make_unique<InterNodeGroups>(topology_of_stage(topology_, mesh.pipeline, stage), mesh);
  return *found;
}

MeshBound MeshBounds::of(const MeshChoice& choice) {
  const std::vector<PipelineStage>& all = stages(choice);
  const MeshModel& of = model(choice.mesh.tensor, choice.micro_batch);
  const Policy policy = this->policy(choice, true);
  const bool splits = choice.schedule == PipelineSchedule::kZeroBubble;
  // The bound assumes views where they are possible. On GPUs without NCCL, a shard group may share one GPU.
  const bool fits_node = choice.mesh.shard * choice.mesh.tensor <= ranks_per_node(options_);
  const bool views = topology_.has_gpus() ? !topology_.over_nccl : fits_node;
  const double micro = choice.accumulate;
  MeshBound bound;
  double before = 0;  // passes on earlier stages before the first and after the last pass of a stage
  double first_update = 0;
  for (const PipelineStage& stage : all) {
    const BoundedStage bounded{.choice = choice, .policy = policy, .model = of, .stage = stage, .gathers_views = views};
    const StageBound own(bounded);
    const int64_t recompute = choice.recompute == kRecomputeAsNeeded
                                  ? own.least_recompute(limit_bytes_)
                                  : std::min<int64_t>(choice.recompute, own.all().recomputable);
    bound.bytes = std::max(bound.bytes, own.bytes(recompute));
    bound.recompute = std::max(bound.recompute, static_cast<int>(recompute));
    const int64_t updated = own.all().trained_elements / (choice.zero_stage == 0 ? 1 : choice.mesh.shard);
    const bool at_end = !policy.matrix_updates && !policy.update_in_backward;  // of the step, on the compute lane
    const double update = !at_end ? 0 : static_cast<double>(updated) * of.cost.update_seconds_per_element;
    if (stage.index == 0) first_update = update;
    const double busy = micro * (own.all().forward_seconds + own.all().backward_seconds +
                                 static_cast<double>(recompute) * of.recompute_seconds);
    const double traffic = traffic_seconds(bounded, groups(choice.mesh, stage.index), own.all());
    bound.seconds = std::max({bound.seconds, update + busy, traffic});
    if (!stage.tied_ends) bound.seconds = std::max(bound.seconds, first_update + before + busy);
    const MeshModel::Sums first = of.of(stage.runs.front());
    before += first.forward_seconds + (splits ? 0 : first.backward_seconds);
  }
  return bound;
}

}  // namespace aliquot
