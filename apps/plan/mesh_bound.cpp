#include "apps/plan/mesh_bound.h"

#include <algorithm>
#include <optional>
#include <ranges>

#include "apps/plan/planned_run.h"
#include "engine/cost/link_prices.h"
#include "engine/plan/pipeline.h"
#include "engine/plan/use_collectives.h"

namespace aliquot {
namespace {

int64_t elements_of(const UnitSpec& unit, int tensor) {
  int64_t elements = 0;
  for (const ParameterSpec& parameter : unit.parameters)
    elements += parameter.tensor.element_count() / (parameter.split.dimension >= 0 ? tensor : 1);
  return elements;
}

/// Returns the time of the collectives that an operation of model code runs.
double collective_seconds(const CostModel& cost, const UseActivations& use, Verb verb, int tensor) {
  if (tensor == 1) return 0;
  double seconds = 0;
  for (auto next = next_collective(use, verb); next; next = next_collective(use, verb, *next)) {
    const UseCollective& what = use.collectives[static_cast<std::size_t>(*next)];
    const int64_t part = what.rows_per_part(tensor) * what.row_elements * element_bytes(what.dtype);
    seconds += tensor_collective_seconds(cost, tensor, what.kind, part);
  }
  return seconds;
}

std::unique_ptr<MeshModel> make_model_of(const PlanOptions& options, const Machine& machine) {
  auto made = std::make_unique<MeshModel>(MeshModel{
      .model = model_of(options, machine), .cost = cost_of(options, machine), .before = {}, .recompute_seconds = -1});
  const ModelSpec& model = made->model;
  const int tensor = options.engine.tensor;
  std::vector<std::size_t> last_use(model.units.size(), 0);
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    for (const UnitId unit : model.uses[use]) last_use[unit] = use;
  }
  MeshModel::Sums sum;
  made->before.push_back(sum);
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    const UseActivations& of = model.activations.uses[use];
    const auto seconds = [&](Verb verb) {
      return model_seconds(model, made->cost, static_cast<int32_t>(use), verb) +
             collective_seconds(made->cost, of, verb, tensor);
    };
    sum.forward_seconds += seconds(Verb::kForward);
    sum.backward_seconds += seconds(Verb::kBackward);
    for (const UnitId unit : model.uses[use]) {
      if (last_use[unit] != use) continue;
      const int64_t elements = elements_of(model.units[unit], tensor);
      sum.elements += elements;
      made->largest_unit = std::max(made->largest_unit, elements);
    }
    const bool is_read =
        of.output_in_backward || (use + 1 < model.uses.size() && model.activations.uses[use + 1].input_in_backward);
    if (is_read) sum.output_bytes += of.output_bytes;
    sum.kept_bytes += of.kept_bytes;
    if (of.recomputable) {
      const double again = seconds(Verb::kRecompute);
      sum.recompute_seconds += again;
      made->recompute_seconds = made->recompute_seconds < 0 ? again : std::min(made->recompute_seconds, again);
      ++sum.recomputable;
    }
    made->before.push_back(sum);
  }
  made->recompute_seconds = std::max(made->recompute_seconds, 0.0);
  return made;
}

/// Returns the smallest number of (micro-batch, virtual stage) pairs of a pipeline stage whose activations exist at the
/// same time, at the moment when there are the most.
int64_t pairs_in_flight(const MeshChoice& choice, int stage) {
  const int64_t micro = choice.accumulate, stages = choice.mesh.pipeline, virtual_stages = choice.virtual_stages;
  if (choice.schedule == PipelineSchedule::kGpipe) return micro;
  if (virtual_stages == 1) return std::min(micro, stages - stage);
  if (micro % stages != 0) return std::min(micro, stages) * (virtual_stages - 1) + 1;
  return std::min(2 * (stages - 1 - stage) + (virtual_stages - 1) * stages + 1, micro * virtual_stages);
}

/// Whether a pipeline stage adds gradients to those of earlier micro-batches while the most activations exist.
bool sums_at_peak(const MeshChoice& choice) {
  if (choice.schedule == PipelineSchedule::kGpipe) return false;
  return choice.accumulate > choice.mesh.pipeline * (choice.virtual_stages == 1 ? 1 : 2);
}

/// Whether each pass gathers its units. Assumes that there is no memory budget.
bool gathers_for_pass(const MeshChoice& choice) {
  return choice.gather_for == kGatherForPass || choice.gather_for == kGatherForAuto;
}

/// The bound of one pipeline stage.
class StageBound {
 public:
  StageBound(const MeshChoice& choice, const Policy& policy, const MeshModel& model, const PipelineStage& stage,
             bool gathers_views)
      : choice_(choice), policy_(policy), model_(model), stage_(stage), gathers_views_(gathers_views) {
    for (const VirtualStage& run : stage.runs) {
      const MeshModel::Sums of = model.of(run);
      all_.forward_seconds += of.forward_seconds;
      all_.backward_seconds += of.backward_seconds;
      all_.recompute_seconds += of.recompute_seconds;
      all_.elements += of.elements;
      all_.output_bytes += of.output_bytes;
      all_.kept_bytes += of.kept_bytes;
      all_.recomputable += of.recomputable;
    }
  }

  const MeshModel::Sums& all() const { return all_; }

  /// The bytes of parameters, gradients and optimizer state that a rank has when it has the most activations.
  int64_t persistent_bytes() const {
    const int64_t shard = all_.elements / choice_.mesh.shard, owned = choice_.zero_stage >= 1 ? shard : all_.elements;
    const Precision& precision = policy_.precision;
    int64_t bytes = owned * precision.master_bytes();
    if (policy_.offload_state == Offload::kNone && !policy_.matrix_updates)
      bytes += owned * policy_.state_bytes_per_block / kBlockElements;
    if (policy_.offload_parameters == Offload::kNone)
      bytes += (choice_.zero_stage == 3 ? shard : all_.elements) * element_bytes(precision.compute);
    if (choice_.zero_stage == 3 && choice_.gather_for == kGatherForStep && !gathers_views_)
      bytes += all_.elements * element_bytes(precision.compute);
    if (sums_at_peak(choice_))
      bytes += (accumulates_into_shard(policy_) ? shard : all_.elements) * element_bytes(precision.gradients);
    return bytes;
  }

  /// The bytes of a rank if the first `recompute` recomputable uses are recomputed.
  int64_t bytes(int64_t recompute) const { return persistent_bytes() + activation_bytes(recompute); }

  /// Returns the smallest number of recomputed uses with which the bytes are within the limit, or the number of
  /// recomputable uses.
  int64_t least_recompute(int64_t limit_bytes) const {
    const auto counts = std::views::iota(int64_t{0}, all_.recomputable);
    return *std::ranges::partition_point(counts, [&](int64_t count) { return bytes(count) > limit_bytes; });
  }

 private:
  int64_t activation_bytes(int64_t recompute) const {
    const int64_t pairs = pairs_in_flight(choice_, stage_.index);
    if (stage_.runs.size() == 1) return pairs * saved_bytes(stage_.runs.front(), recompute);
    std::optional<int64_t> least;  // of a virtual stage
    for (const VirtualStage& run : stage_.runs) {
      if (stage_.tied_ends && run.is_first()) continue;
      const int64_t saved = saved_bytes(run, recompute);
      if (!least || saved < *least) least = saved;
    }
    return pairs * least.value_or(0);
  }

  /// The saved activations of a virtual stage for one micro-batch.
  int64_t saved_bytes(const VirtualStage& run, int64_t recompute) const {
    const MeshModel::Sums of = model_.of(run);
    int64_t kept = 0, recomputed = std::min(recompute, of.recomputable);
    for (int32_t use = run.first_use; use < run.end_use; ++use) {
      const UseActivations& activations = model_.model.activations.uses[static_cast<std::size_t>(use)];
      if (activations.recomputable && recomputed-- > 0) continue;
      kept += activations.kept_bytes;
    }
    return of.output_bytes + kept;
  }

  const MeshChoice& choice_;
  const Policy& policy_;
  const MeshModel& model_;
  const PipelineStage& stage_;
  bool gathers_views_;
  MeshModel::Sums all_;
};

/// The traffic of a pipeline stage in a step, as the time for which it keeps lanes and links busy.
class TrafficBound {
 public:
  TrafficBound(const MeshChoice& choice, const Policy& policy, const InterNodeGroups& groups, const MeshModel& model)
      : choice_(choice), policy_(policy), groups_(groups), model_(model) {}

  /// `elements`: of the parameters of a rank of the stage. `views`: whether gathers are free.
  double seconds(int64_t elements, bool views) const {
    if (policy_.quantize_weights || policy_.quantize_gradients) return 0;
    const Precision& precision = policy_.precision;
    const double gathered = views ? 0 : gathered_elements(elements), reduced = reduced_elements(elements);
    const auto shard_part = [&](double all) { return static_cast<int64_t>(all / choice_.mesh.shard); };
    int64_t gather_crossing = 0, reduce_crossing = 0, exchange_crossing = 0;
    for (const GroupPlacement& of : groups_.replicas) {
      gather_crossing += of.gathered_bytes(shard_part(gathered) * element_bytes(precision.compute));
      reduce_crossing += of.reduced_bytes(shard_part(reduced), precision.sent());
    }
    for (const GroupPlacement& of : groups_.peers)
      exchange_crossing += of.reduced_bytes(elements / choice_.data_ranks(), DType::kFloat32);
    const auto on_link = [&](int64_t bytes) {
      return static_cast<double>(bytes) / model_.cost.between_nodes.bytes_per_second;
    };
    const auto inside = [&](double all, int64_t element) {
      return all * static_cast<double>(element) * (choice_.mesh.shard - 1) / choice_.mesh.shard /
             model_.cost.inside_node.bytes_per_second;
    };
    const double gather_lane = inside(gathered, element_bytes(precision.compute)) + on_link(gather_crossing);
    const double reduce_lane = inside(reduced, element_bytes(precision.sent())) + on_link(reduce_crossing);
    return std::max({gather_lane, reduce_lane, on_link(gather_crossing + reduce_crossing + exchange_crossing)});
  }

 private:
  /// The elements that are gathered in a step. With a gather for each pass, a unit may stay gathered from one pass to
  /// the next at the ends of the stage and while units are kept.
  double gathered_elements(int64_t elements) const {
    if (choice_.mesh.shard == 1 || choice_.zero_stage == 0) return 0;
    if (choice_.zero_stage < 3 || !gathers_for_pass(choice_)) return static_cast<double>(elements);
    const double kept = static_cast<double>(model_.largest_unit) * (2 + policy_.keep_gathered);
    const double of_micro_batch = 2 * static_cast<double>(elements) - kept;
    return std::max(static_cast<double>(elements), choice_.accumulate * of_micro_batch);
  }
  double reduced_elements(int64_t elements) const {
    const bool each = accumulates_into_shard(policy_);
    return static_cast<double>(elements) * (each ? choice_.accumulate : 1);
  }

  const MeshChoice& choice_;
  const Policy& policy_;
  const InterNodeGroups& groups_;
  const MeshModel& model_;
};

}  // namespace

MeshModel::Sums MeshModel::of(const VirtualStage& run) const {
  const Sums &first = before[static_cast<std::size_t>(run.first_use)],
             &end = before[static_cast<std::size_t>(run.end_use)];
  return {.forward_seconds = end.forward_seconds - first.forward_seconds,
          .backward_seconds = end.backward_seconds - first.backward_seconds,
          .recompute_seconds = end.recompute_seconds - first.recompute_seconds,
          .elements = end.elements - first.elements,
          .output_bytes = end.output_bytes - first.output_bytes,
          .kept_bytes = end.kept_bytes - first.kept_bytes,
          .recomputable = end.recomputable - first.recomputable};
}

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
    found = make_model_of(options, machine_);
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

const InterNodeGroups& MeshBounds::groups(const Mesh& mesh) {
  auto& found = groups_[{{mesh.pipeline, mesh.replica}, {mesh.shard, mesh.tensor}}];
  if (!found) found = std::make_unique<InterNodeGroups>(topology_of_stage(topology_, mesh.pipeline, 0), mesh);
  return *found;
}

MeshBound MeshBounds::of(const MeshChoice& choice) {
  const std::vector<PipelineStage>& all = stages(choice);
  const MeshModel& of = model(choice.mesh.tensor, choice.micro_batch);
  const Policy policy = this->policy(choice, true);
  const TrafficBound traffic(choice, policy, groups(choice.mesh), of);
  const bool splits = choice.schedule == PipelineSchedule::kZeroBubble;
  const bool views = !topology_.has_gpus() && choice.mesh.shard * choice.mesh.tensor <= ranks_per_node(options_);
  const double micro = choice.accumulate;
  MeshBound bound;
  double before = 0;  // passes on earlier stages before the first and after the last pass of a stage
  double first_update = 0;
  for (const PipelineStage& stage : all) {
    const StageBound own(choice, policy, of, stage, views);
    const int64_t recompute = choice.recompute == kRecomputeAsNeeded
                                  ? own.least_recompute(limit_bytes_)
                                  : std::min<int64_t>(choice.recompute, own.all().recomputable);
    bound.bytes = std::max(bound.bytes, own.bytes(recompute));
    bound.recompute = std::max(bound.recompute, static_cast<int>(recompute));
    const int64_t updated = own.all().elements / (choice.zero_stage == 0 ? 1 : choice.mesh.shard);
    const double update = policy.matrix_updates ? 0 : static_cast<double>(updated) * of.cost.update_seconds_per_element;
    if (stage.index == 0) first_update = update;
    const double busy = micro * (own.all().forward_seconds + own.all().backward_seconds +
                                 static_cast<double>(recompute) * of.recompute_seconds);
    bound.seconds = std::max({bound.seconds, update + busy, traffic.seconds(own.all().elements, views)});
    if (!stage.tied_ends) bound.seconds = std::max(bound.seconds, first_update + before + busy);
    const MeshModel::Sums first = of.of(stage.runs.front());
    before += first.forward_seconds + (splits ? 0 : first.backward_seconds);
  }
  return bound;
}

}  // namespace aliquot
