#pragma once
// How many bytes the buffers of a schedule hold: the writer plans them by these functions, and nobody else counts them.

#include <cstdint>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// What the model declared for activations: of a use, or of what backward hands on.
int64_t declared_bytes(const ModelSpec& model, Role role, int32_t use);
/// What the buffer of a role must at least hold. Where the policy checks, activations end in a red zone.
int64_t needed_bytes(const Plan& plan, Role role, int32_t flat);

/// Bytes that each rank brings to the norm: whether it abandoned the step, and room for every subtree its shards can hold,
/// a bound that needs no look at ranks.
int64_t norm_part_bytes(const std::vector<FlatSpec>& flats);

}  // namespace aliquot
