#pragma once
// The collectives that uses of a model declare.

#include <optional>

#include "engine/plan/schedule.h"

namespace aliquot {

/// Returns the index of the first collective after index `after` that an operation of model code with this verb runs.
/// Returns nullopt after the last one.
std::optional<int32_t> next_collective(const UseActivations& use, Verb verb, int32_t after = -1);

/// Whether a forward of the use ends its output with a collective, so that a recompute cannot restore the output.
bool has_collective_in_output(const Plan& plan, int32_t use);

/// The collective of an operation kUseCollective.
const UseCollective& collective_of(const ModelSpec& model, const Operation& operation);

/// The buffer that contains the data of a collective, as PlannedBuffer::role and PlannedBuffer::flat.
struct CollectiveBuffer {
  Role role;
  int32_t owner;
};
CollectiveBuffer buffer_of(const UseCollective& collective, int32_t use);

/// Whether ranks add elements, so that collectives may need staging memory.
constexpr bool adds(CollectiveKind kind) { return kind != CollectiveKind::kGather; }

/// Throws UsageError if a declaration is invalid for tensor groups of `tensor` ranks.
void check_collectives(const ModelSpec& model, int tensor);

/// Returns the size of the staging memory for the collectives of all uses of the stage. All ranks use the maximum.
int64_t collective_staging_bytes(const Plan& plan);
/// Returns the size of the staging memory for kSumOverTensor.
int64_t tensor_sum_staging_bytes(const Plan& plan);

}  // namespace aliquot
