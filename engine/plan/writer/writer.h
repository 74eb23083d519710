#pragma once
// Writing the operations of a step, before any of its buffers has a place.

#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// When a buffer may be overwritten: after these have finished.
struct DraftBuffer {
  PlannedBuffer buffer;  // without its offset
  std::vector<Wait> ends;
};

struct ScheduleDraft {
  std::vector<Operation> operations;
  std::vector<DraftBuffer> buffers;
  int64_t alignment_bytes = 256;  // of every place
};

/// The groups of all flats of matrices, in the order of units. The same on every rank.
std::vector<MatrixGroup> matrix_groups(const std::vector<FlatSpec>& flats, const Policy& policy, int rank_count);

/// The operations of one step and the lifetimes of its buffers. `schedule` brings the resolved choices (view,
/// accumulate_into_shard); model, policy and flats are read from `plan`.
ScheduleDraft write(const Plan& plan);

/// What the policy offloads lies elsewhere between uses: copies bring it before the operation that needs it, one ahead, and
/// take it back after the one that changes it.
void offload(const Plan& plan, ScheduleDraft& draft);

/// Gives every buffer of `draft` an offset in its space, and lets the first operation of each
/// wait for whatever held its bytes before, in this step or the one before.
void place(ScheduleDraft draft, Schedule& schedule, int rank_count);

/// Drops waits that an earlier wait of the same lane implies.
void prune(std::vector<Operation>& operations);

}  // namespace aliquot
