#pragma once
// The sizes of buffers. The schedule writer and the executor use these functions; the validator has its own.

#include <cstdint>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// The size that the model declares for a buffer of this role and use. `role` must be an activation role. The size of
/// kActivationGradients is the same for all uses.
int64_t declared_bytes(const ModelSpec& model, Role role, int32_t use);
/// The size that the plan must give to the buffer with this role and owner. `flat` is the index of the owner, as in
/// PlannedBuffer::flat. In the checking mode, the size of activations includes a red zone.
int64_t needed_bytes(const Plan& plan, Role role, int32_t flat);

/// Bytes that each rank contributes to the norm: the flag whether it abandons the step, and one sum for each subtree
/// that its shards may contain. An upper bound, the same for all ranks.
int64_t norm_part_bytes(const Plan& plan);

/// On GPUs, the size of the update table at the start of Role::kSegments, without the table of kCompareState after it.
int64_t updated_segment_bytes(const Plan& plan, int32_t flat);

}  // namespace aliquot
