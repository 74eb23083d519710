#include "apps/plan/mesh_bound.h"

#include <algorithm>
#include <ranges>

#include "apps/plan/planned_run.h"
#include "engine/cost/link_prices.h"
#include "engine/plan/pipeline.h"
#include "engine/plan/use_collectives.h"

namespace aliquot {
namespace {

int64_t elements_of(const UnitSpec& unit, int tensor, bool only_trained = false) {
  int64_t elements = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    if (only_trained && !parameter.tensor.trainable) continue;
    elements += parameter.tensor.element_count() / (parameter.split.dimension >= 0 ? tensor : 1);
  }
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
  auto made = std::make_unique<MeshModel>(MeshModel{.model = model_of(options, machine),
                                                    .cost = cost_of(options, machine),
                                                    .before = {},
                                                    .splits = {},
                                                    .recompute_seconds = -1});
  const ModelSpec& model = made->model;
  const int tensor = options.engine.tensor;
  std::vector<std::size_t> last_use(model.units.size(), 0);
  std::vector<int> use_count(model.units.size(), 0);
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    for (const UnitId unit : model.uses[use]) {
      last_use[unit] = use;
      ++use_count[unit];
    }
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
      sum.trained_elements += elements_of(model.units[unit], tensor, true);
      made->largest_unit = std::max(made->largest_unit, elements);
    }
    if (of.recomputable) {
      const double again = seconds(Verb::kRecompute);
      sum.recompute_seconds += again;
      made->recompute_seconds = made->recompute_seconds < 0 ? again : std::min(made->recompute_seconds, again);
      ++sum.recomputable;
    }
    const auto trains = [&](UnitId unit) { return elements_of(model.units[unit], 1, true) > 0; };
    const auto is_used_once = [&](UnitId unit) { return use_count[unit] == 1; };
    made->splits.push_back(of.splits_backward && std::ranges::any_of(model.uses[use], trains) &&
                           std::ranges::all_of(model.uses[use], is_used_once));
    made->before.push_back(sum);
  }
  made->recompute_seconds = std::max(made->recompute_seconds, 0.0);
  return made;
}

/// Returns the number of micro-batches of each virtual stage of a pipeline stage whose activations exist when the stage
/// begins its first backward pass.
std::vector<int64_t> in_flight(const MeshChoice& choice, int stage) {
  const int64_t micro = choice.accumulate, stages = choice.mesh.pipeline, virtual_stages = choice.virtual_stages;
  if (choice.schedule == PipelineSchedule::kGpipe) return {micro};
  if (virtual_stages == 1) return {std::min(micro, stages - stage)};
  const int64_t round =
      std::min(micro, stages);  // the micro-batches that a virtual stage runs before the next one does
  const int64_t ahead = micro % stages == 0 ? 2 * (stages - 1 - stage) : 0;
  const int64_t passes = std::min(ahead + (virtual_stages - 1) * round + 1, micro * virtual_stages);
  std::vector<int64_t> counts(static_cast<std::size_t>(virtual_stages), passes / (round * virtual_stages) * round);
  int64_t left = passes % (round * virtual_stages);
  for (std::size_t v = 0; left > 0; ++v, left -= round) counts[v] += std::min(left, round);
  return counts;
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
      all_.trained_elements += of.trained_elements;
      all_.recomputable += of.recomputable;
    }
  }

  const MeshModel::Sums& all() const { return all_; }

  /// The bytes of parameters, gradients and optimizer state that a rank has when it has the most activations.
  int64_t persistent_bytes() const {
    const auto sharded = [&](int64_t elements) { return elements / choice_.mesh.shard; };
    const int64_t all = all_.elements, trained = all_.trained_elements;
    const int64_t owned = choice_.zero_stage >= 1 ? sharded(trained) : trained;
    const Precision& precision = policy_.precision;
    int64_t bytes = policy_.offload_state == Offload::kNone ? owned * precision.master_bytes() : 0;
    if (policy_.offload_state == Offload::kNone && !policy_.matrix_updates)
      bytes += owned * policy_.state_bytes_per_block / kBlockElements;
    if (policy_.offload_parameters == Offload::kNone)
      bytes += (choice_.zero_stage == 3 ? sharded(all) : all) * element_bytes(precision.compute);
    if (choice_.zero_stage == 3 && choice_.gather_for == kGatherForStep && !gathers_views_)
      bytes += all * element_bytes(precision.compute);
    if (sums_at_peak(choice_))
      bytes += (accumulates_into_shard(policy_) ? sharded(trained) : trained) * element_bytes(precision.gradients);
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
  const UseActivations& use(int32_t index) const {
    return model_.model.activations.uses[static_cast<std::size_t>(index)];
  }

  /// The memory of activations when the stage begins its first backward pass. With zero bubble, a later one.
  int64_t activation_bytes(int64_t recompute) const {
    const std::vector<int64_t> counts = in_flight(choice_, stage_.index);
    int64_t bytes = 0;
    std::size_t at = 0;
    for (const VirtualStage& run : stage_.runs) {
      const int64_t recomputable = model_.of(run).recomputable;
      const bool is_tied = stage_.tied_ends && run.is_first();  // runs in addition to the virtual stages
      if (!is_tied) bytes += counts[at++] * saved_bytes(run, recompute) + split_bytes(run);
      recompute -= std::min(recompute, recomputable);
    }
    return bytes + first_backward_bytes();
  }

  /// The saved activations of a virtual stage for one micro-batch.
  int64_t saved_bytes(const VirtualStage& run, int64_t recompute) const {
    int64_t bytes = !run.is_first() && use(run.first_use).input_in_backward ? use(run.first_use - 1).output_bytes : 0;
    for (int32_t i = run.first_use; i < run.end_use; ++i) {
      const bool next_reads = i < run.last_use() && use(i + 1).input_in_backward;
      if (use(i).output_in_backward || next_reads) bytes += use(i).output_bytes;
      if (!use(i).recomputable || recompute-- <= 0) bytes += use(i).kept_bytes;
    }
    return bytes;
  }

  /// With zero bubble, the memory that the second parts of earlier backward passes still need when a backward begins.
  /// Each stage delays the second part by as many micro-batches as there are earlier stages.
  int64_t split_bytes(const VirtualStage& run) const {
    if (choice_.schedule != PipelineSchedule::kZeroBubble || choice_.accumulate < choice_.mesh.pipeline) return 0;
    int64_t bytes = 0;
    for (int32_t i = run.first_use; i < run.end_use; ++i) {
      if (model_.splits[static_cast<std::size_t>(i)]) bytes += use(i).kept_bytes + use(i).weight_inputs_bytes;
    }
    return stage_.index * bytes;
  }

  /// The memory that the first backward of the stage needs in addition: temporary memory, the gradient of the output,
  /// and the gathered parameters and unreduced gradients of its units.
  int64_t first_backward_bytes() const {
    const int32_t last = stage_.runs.back().last_use();
    int64_t bytes = use(last).scratch_bytes + model_.model.activations.backward_bytes;
    const bool splits = choice_.schedule == PipelineSchedule::kZeroBubble && use(last).splits_backward;
    const bool is_sharded = choice_.mesh.shard > 1;
    for (const UnitId unit : model_.model.uses[static_cast<std::size_t>(last)]) {
      const UnitSpec& of = model_.model.units[unit];
      if (is_sharded && choice_.zero_stage == 3 && gathers_for_pass(choice_) && !gathers_views_)
        bytes += elements_of(of, choice_.mesh.tensor) * element_bytes(policy_.precision.compute);
      if (!splits && is_sharded && accumulates_into_shard(policy_))
        bytes += elements_of(of, choice_.mesh.tensor, true) * element_bytes(policy_.precision.gradients);
    }
    return bytes;
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
  /// `groups`: those of the stage.
  TrafficBound(const MeshChoice& choice, const Policy& policy, const MeshModel& model, const PipelineStage& stage,
               const InterNodeGroups& groups)
      : choice_(choice), policy_(policy), model_(model), stage_(stage), groups_(groups) {}

  /// `elements` and `trained`: of the parameters of a rank of the stage. `views`: whether gathers are free.
  double seconds(int64_t elements, int64_t trained, bool views) const {
    if (policy_.quantize_weights || policy_.quantize_gradients) return 0;
    const Precision& precision = policy_.precision;
    // Below ZeRO stage 3, only parameters that were updated are gathered.
    const double gathered = views ? 0 : gathered_elements(choice_.zero_stage == 3 ? elements : trained),
                 reduced = reduced_elements(trained);
    const auto shard_part = [&](double all) { return static_cast<int64_t>(all / choice_.mesh.shard); };
    int64_t gather_crossing = 0, reduce_crossing = 0, exchange_crossing = 0;
    for (const GroupPlacement& of : groups_.replicas) {
      gather_crossing += of.gathered_bytes(shard_part(gathered) * element_bytes(precision.compute));
      reduce_crossing += of.reduced_bytes(shard_part(reduced), precision.sent());
    }
    for (const GroupPlacement& of : groups_.peers)
      exchange_crossing += of.reduced_bytes(trained / choice_.data_ranks(), DType::kFloat32);
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
  /// the next at the ends of each virtual stage, as far as prefetch reaches, and while units are kept.
  double gathered_elements(int64_t elements) const {
    if (choice_.mesh.shard == 1 || choice_.zero_stage == 0) return 0;
    if (choice_.zero_stage < 3 || !gathers_for_pass(choice_)) return static_cast<double>(elements);
    const int ahead = std::max(policy_.prefetch, 1);
    const auto is_short = [&](const VirtualStage& run) { return run.end_use - run.first_use <= ahead; };
    if (std::ranges::any_of(stage_.runs, is_short)) return static_cast<double>(elements);
    const auto ends = 2 * ((ahead + 1) / 2) * std::ssize(stage_.runs);
    const double kept = static_cast<double>(model_.largest_unit) * static_cast<double>(ends + policy_.keep_gathered);
    const double of_micro_batch = 2 * static_cast<double>(elements) - kept;
    return std::max(static_cast<double>(elements), choice_.accumulate * of_micro_batch);
  }
  double reduced_elements(int64_t elements) const {
    const bool each = accumulates_into_shard(policy_);
    return static_cast<double>(elements) * (each ? choice_.accumulate : 1);
  }

  const MeshChoice& choice_;
  const Policy& policy_;
  const MeshModel& model_;
  const PipelineStage& stage_;
  const InterNodeGroups& groups_;
};

}  // namespace

MeshModel::Sums MeshModel::of(const VirtualStage& run) const {
  const Sums &first = before[static_cast<std::size_t>(run.first_use)],
             &end = before[static_cast<std::size_t>(run.end_use)];
  return {.forward_seconds = end.forward_seconds - first.forward_seconds,
          .backward_seconds = end.backward_seconds - first.backward_seconds,
          .recompute_seconds = end.recompute_seconds - first.recompute_seconds,
          .elements = end.elements - first.elements,
          .trained_elements = end.trained_elements - first.trained_elements,
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
    const int64_t updated = own.all().trained_elements / (choice.zero_stage == 0 ? 1 : choice.mesh.shard);
    const bool at_end = !policy.matrix_updates && !policy.update_in_backward;  // of the step, on the compute lane
    const double update = !at_end ? 0 : static_cast<double>(updated) * of.cost.update_seconds_per_element;
    if (stage.index == 0) first_update = update;
    const double busy = micro * (own.all().forward_seconds + own.all().backward_seconds +
                                 static_cast<double>(recompute) * of.recompute_seconds);
    const TrafficBound traffic(choice, policy, of, stage, groups(choice.mesh, stage.index));
    bound.seconds = std::max(
        {bound.seconds, update + busy, traffic.seconds(own.all().elements, own.all().trained_elements, views)});
    if (!stage.tied_ends) bound.seconds = std::max(bound.seconds, first_update + before + busy);
    const MeshModel::Sums first = of.of(stage.runs.front());
    before += first.forward_seconds + (splits ? 0 : first.backward_seconds);
  }
  return bound;
}

}  // namespace aliquot
