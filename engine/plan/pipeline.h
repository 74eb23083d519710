#pragma once
// The division of a model into pipeline stages.

#include <map>
#include <utility>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// Returns the uses of each pipeline stage, as Policy::pipeline_cut says. Throws UsageError if the cut is invalid, or
/// if the model cannot be divided there: a unit is used on two stages, or the activations at a boundary are not
/// declared.
std::vector<PipelineStage> pipeline_stages(const ModelSpec& model, const Policy& policy);

/// The buffers that the sends and receives of a stage read or write. The schedule must outlive it.
class TransferBuffers {
 public:
  explicit TransferBuffers(const Schedule& schedule);
  /// Null if there is no such buffer.
  const PlannedBuffer* of(const Operation& operation) const;

 private:
  /// By owner (the use of an output, or -1 for gradients) and micro-batch. Each has one buffer.
  std::map<std::pair<int32_t, int32_t>, const PlannedBuffer*> buffers_;
};

}  // namespace aliquot
