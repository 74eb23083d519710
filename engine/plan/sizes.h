#pragma once
// The sizes of buffers. The schedule writer and the executor use these functions; the validator has its own.

#include <cstdint>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// The size that the model declares for an activation role of a use (or for kActivationGradients).
int64_t declared_bytes(const ModelSpec& model, Role role, int32_t use);
/// The size of the buffer of a role. In the checking mode, activations include a red zone. `flat` is
/// PlannedBuffer::flat.
int64_t needed_bytes(const Plan& plan, Role role, int32_t flat);

/// Bytes that each rank contributes to the norm: the flag whether it abandons the step, and one sum for each subtree
/// that its shards may contain. An upper bound, the same for all ranks.
int64_t norm_part_bytes(const Plan& plan);

}  // namespace aliquot
