#include "apps/plan/stage_bound.h"

#include <algorithm>
#include <ranges>

#include "engine/plan/pipeline.h"

namespace aliquot {
namespace {

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

/// The elements of parameters that are gathered in a step. With a gather for each pass, a unit may stay gathered from
/// one pass to the next at the ends of each virtual stage, as far as prefetch reaches, and while units are kept.
double gathered_elements(const BoundedStage& of, const MeshModel::Sums& all) {
  const MeshChoice& choice = of.choice;
  if (choice.mesh.shard == 1 || choice.zero_stage == 0 || of.gathers_views) return 0;
  // Below ZeRO stage 3, only parameters that were updated are gathered.
  const auto elements = static_cast<double>(choice.zero_stage == 3 ? all.elements : all.trained_elements);
  if (choice.zero_stage < 3 || !gathers_for_pass(choice)) return elements;
  const int ahead = std::max(of.policy.prefetch, 1);
  const auto is_short = [&](const VirtualStage& run) { return run.end_use - run.first_use <= ahead; };
  if (std::ranges::any_of(of.stage.runs, is_short)) return elements;
  const auto ends = 2 * ((ahead + 1) / 2) * std::ssize(of.stage.runs);
  const double kept = static_cast<double>(of.model.largest_unit) * static_cast<double>(ends + of.policy.keep_gathered);
  return std::max(elements, choice.accumulate * (2 * elements - kept));
}

double reduced_elements(const BoundedStage& of, const MeshModel::Sums& all) {
  return static_cast<double>(all.trained_elements) * (accumulates_into_shard(of.policy) ? of.choice.accumulate : 1);
}

/// The bytes that cross between nodes in a step.
struct Crossing {
  int64_t gathered = 0, reduced = 0, exchanged = 0;
};

Crossing crossing_of(const BoundedStage& of, const InterNodeGroups& groups, const MeshModel::Sums& all) {
  const Precision& precision = of.policy.precision;
  const auto shard_part = [&](double elements) { return static_cast<int64_t>(elements / of.choice.mesh.shard); };
  Crossing crossing;
  for (const GroupPlacement& group : groups.replicas) {
    crossing.gathered +=
        group.gathered_bytes(shard_part(gathered_elements(of, all)) * element_bytes(precision.compute));
    crossing.reduced += group.reduced_bytes(shard_part(reduced_elements(of, all)), precision.sent());
  }
  for (const GroupPlacement& group : groups.peers)
    crossing.exchanged += group.reduced_bytes(all.trained_elements / of.choice.data_ranks(), DType::kFloat32);
  return crossing;
}

}  // namespace

StageBound::StageBound(const BoundedStage& of) : of_(of) {
  for (const VirtualStage& run : of.stage.runs) all_ = all_ + of.model.of(run);
}

int64_t StageBound::least_recompute(int64_t limit_bytes) const {
  const auto counts = std::views::iota(int64_t{0}, all_.recomputable);
  return *std::ranges::partition_point(counts, [&](int64_t count) { return bytes(count) > limit_bytes; });
}

/// The bytes of parameters, gradients and optimizer state that a rank has when it has the most activations.
int64_t StageBound::persistent_bytes() const {
  const MeshChoice& choice = of_.choice;
  const Policy& policy = of_.policy;
  const Precision& precision = policy.precision;
  const auto sharded = [&](int64_t elements) { return elements / choice.mesh.shard; };
  const int64_t all = all_.elements, trained = all_.trained_elements;
  const int64_t owned = choice.zero_stage >= 1 ? sharded(trained) : trained;
  int64_t bytes = policy.offload_state == Offload::kNone ? owned * precision.master_bytes() : 0;
  if (policy.offload_state == Offload::kNone && !policy.matrix_updates)
    bytes += owned * policy.state_bytes_per_block / kBlockElements;
  if (policy.offload_parameters == Offload::kNone)
    bytes += (choice.zero_stage == 3 ? sharded(all) : all) * element_bytes(precision.compute);
  if (choice.zero_stage == 3 && choice.gather_for == kGatherForStep && !of_.gathers_views)
    bytes += all * element_bytes(precision.compute);
  if (sums_at_peak(choice))
    bytes += (accumulates_into_shard(policy) ? sharded(trained) : trained) * element_bytes(precision.gradients);
  return bytes;
}

const UseActivations& StageBound::use(int32_t index) const {
  return of_.model.model.activations.uses[static_cast<std::size_t>(index)];
}

/// Returns the memory of activations when the first backward pass of the stage begins. With a zero-bubble schedule, it
/// includes the memory of the second parts that the stage delays, see split_bytes().
int64_t StageBound::activation_bytes(int64_t recompute) const {
  const std::vector<int64_t> counts = in_flight(of_.choice, of_.stage.index);
  int64_t bytes = 0;
  std::size_t at = 0;
  for (const VirtualStage& run : of_.stage.runs) {
    const int64_t recomputable = of_.model.of(run).recomputable;
    const bool is_tied = of_.stage.tied_ends && run.is_first();  // runs in addition to the virtual stages
    if (!is_tied) bytes += counts[at++] * saved_bytes(run, recompute) + split_bytes(run);
    recompute -= std::min(recompute, recomputable);
  }
  return bytes + first_backward_bytes();
}

/// The saved activations of a virtual stage for one micro-batch.
int64_t StageBound::saved_bytes(const VirtualStage& run, int64_t recompute) const {
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
int64_t StageBound::split_bytes(const VirtualStage& run) const {
  const MeshChoice& choice = of_.choice;
  if (choice.schedule != PipelineSchedule::kZeroBubble || choice.accumulate < choice.mesh.pipeline) return 0;
  int64_t bytes = 0;
  for (int32_t i = run.first_use; i < run.end_use; ++i) {
    if (of_.model.splits[static_cast<std::size_t>(i)]) bytes += use(i).kept_bytes + use(i).weight_inputs_bytes;
  }
  return of_.stage.index * bytes;
}

/// The memory that the first backward of the stage needs in addition: temporary memory, the gradient of the output,
/// and the gathered parameters and unreduced gradients of its units.
int64_t StageBound::first_backward_bytes() const {
  const MeshChoice& choice = of_.choice;
  const ModelSpec& model = of_.model.model;
  const int32_t last = of_.stage.runs.back().last_use();
  int64_t bytes = use(last).scratch_bytes + model.activations.backward_bytes;
  const bool splits = choice.schedule == PipelineSchedule::kZeroBubble && use(last).splits_backward;
  const bool is_sharded = choice.mesh.shard > 1;
  for (const UnitId id : model.uses[static_cast<std::size_t>(last)]) {
    const UnitSpec& unit = model.units[id];
    if (is_sharded && choice.zero_stage == 3 && gathers_for_pass(choice) && !of_.gathers_views)
      bytes += elements_of(unit, choice.mesh.tensor) * element_bytes(of_.policy.precision.compute);
    if (!splits && is_sharded && accumulates_into_shard(of_.policy))
      bytes += elements_of(unit, choice.mesh.tensor, true) * element_bytes(of_.policy.precision.gradients);
  }
  return bytes;
}

double traffic_seconds(const BoundedStage& of, const InterNodeGroups& groups, const MeshModel::Sums& all) {
  if (of.policy.quantize_weights || of.policy.quantize_gradients) return 0;
  const CostModel& cost = of.model.cost;
  const Precision& precision = of.policy.precision;
  const int shard = of.choice.mesh.shard;
  const auto on_link = [&](int64_t bytes) { return static_cast<double>(bytes) / cost.between_nodes.bytes_per_second; };
  const auto inside = [&](double elements, int64_t element) {
    return elements * static_cast<double>(element) * (shard - 1) / shard / cost.inside_node.bytes_per_second;
  };
  const Crossing crossing = crossing_of(of, groups, all);
  const double gather_lane =
      inside(gathered_elements(of, all), element_bytes(precision.compute)) + on_link(crossing.gathered);
  const double reduce_lane =
      inside(reduced_elements(of, all), element_bytes(precision.sent())) + on_link(crossing.reduced);
  return std::max({gather_lane, reduce_lane, on_link(crossing.gathered + crossing.reduced + crossing.exchanged)});
}

}  // namespace aliquot
