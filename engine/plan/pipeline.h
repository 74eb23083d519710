#pragma once
// The division of a model into pipeline stages.

#include <map>
#include <utility>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// Returns the uses of each pipeline stage, as Policy::pipeline_cut says. Throws UsageError if the cut is invalid, if a
/// unit is used on two stages, or if the activations at a boundary are not declared.
///
/// If the first uses of the model share a unit with uses of the last stage (a tied embedding), the last stage also runs
/// these first uses. The table then stays on one stage: only activations and their gradients are sent.
std::vector<PipelineStage> pipeline_stages(const ModelSpec& model, const Policy& policy);

/// Throws UsageError if the numbers of pipeline stages and virtual stages do not fit together, or exceed the number of
/// uses.
void check_virtual_stages(const ModelSpec& model, const Policy& policy);

/// Returns the number of tied uses at the start of the model: consecutive uses before `end` that share a unit with a
/// use from `first_of_last` on.
int32_t tied_uses(const ModelSpec& model, int32_t end, int32_t first_of_last);

/// Returns the order of the passes of all stages, including those of tied ends. The result is the same for each `stage`
/// of a pipeline.
PassOrder pass_order_of(const Policy& policy, const PipelineStage& stage);

/// The passes of one pipeline stage, in order, and the receives before each pass.
struct StagePasses {
  std::vector<PipelineAction> actions;
  Receives receives;
};

/// Returns the passes of all pipeline stages, for the order that pass_order_of() returns.
std::vector<StagePasses> stage_passes(const Policy& policy, const PipelineStage& stage);

/// Returns the plan of pipeline stage `stage` in plan_pipeline(), without what depends on the other stages:
/// Operation::peer_offset_bytes, and a common Schedule::stream_bytes. Takes less time than planning all stages. Throws
/// like plan().
Plan plan_stage(const ModelSpec& model, const Policy& policy, const Topology& topology, int stage);

/// Returns for each unit whether it has uses in several virtual stages of the pipeline stage.
std::vector<bool> units_in_several_runs(const Plan& plan);

/// Returns for each unit whether unreduced gradients of several micro-batches exist at the same time. This applies to
/// units with uses in two virtual stages of the pipeline stage, if each micro-batch is reduced
/// (Schedule::accumulate_into_shard).
std::vector<bool> units_with_interleaved_gradients(const Plan& plan);

/// The buffers that the sends and receives of a stage read or write. The schedule must outlive it.
class TransferBuffers {
 public:
  explicit TransferBuffers(const Schedule& schedule);
  /// Returns the buffer that the send or receive `id` accesses, or null if no such buffer exists at that time.
  const PlannedBuffer* of(OperationId id) const;

 private:
  const Schedule& schedule_;
  /// Keyed by owner and micro-batch. The owner of an output is its use; the owner of gradients is -1. The lifetimes of
  /// the buffers of one key do not overlap.
  std::map<std::pair<int32_t, int32_t>, std::vector<const PlannedBuffer*>> buffers_;
};

}  // namespace aliquot
