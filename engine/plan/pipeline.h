#pragma once
// The division of a model into pipeline stages.

#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// Returns the uses of each pipeline stage, as Policy::pipeline_cut says. Throws UsageError if the cut is invalid, or
/// if the model cannot be divided there: a unit is used on two stages, or the activations at a boundary are not
/// declared.
std::vector<PipelineStage> pipeline_stages(const ModelSpec& model, const Policy& policy);

}  // namespace aliquot
