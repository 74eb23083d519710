#pragma once
// The phases of planning a step: writing of operations and lifetimes of buffers, offload copies, placement, pruning of
// waits.

#include <vector>

#include "engine/plan/pipeline.h"
#include "engine/plan/schedule.h"

namespace aliquot {

/// A buffer that has no offset yet.
struct DraftBuffer {
  PlannedBuffer buffer;
  std::vector<Wait> ends;  // operations that must end before the bytes of the buffer may be reused
};

struct ScheduleDraft {
  std::vector<Operation> operations;
  std::vector<DraftBuffer> buffers;
  int64_t alignment_bytes = 256;  // all offsets are multiples of this
};

/// Divides the matrices of a plan's pipeline stage into groups, in the order of units. The result is the same on every
/// rank of the stage.
std::vector<MatrixGroup> matrix_groups(const Plan& plan);

/// Writes the operations of one step and the lifetimes of its buffers. Reads the model, policy, flat buffers and matrix
/// groups of `plan`, and the resolved options in Plan::schedule (view, accumulate_into_shard). `passes`: those of the
/// plan's pipeline stage.
ScheduleDraft write(const Plan& plan, const StagePasses& passes);

/// Moves the buffers that the policy offloads out of the arena. Adds slots, and operations that copy offloaded data
/// into a slot before each operation that needs the data. Also adds operations that copy the data back after each
/// operation that changes it.
void offload(const Plan& plan, ScheduleDraft& draft);

/// Assigns to each buffer of `draft` an offset in its Space. If other buffers held its bytes before, in this step or in
/// the previous one, the first operation of the buffer waits until those buffers are no longer in use.
void place(ScheduleDraft draft, Schedule& schedule, int rank_count);

/// Sets PlannedBuffer::group of all buffers. The schedule must be complete.
void assign_groups(Plan& plan);

/// Removes each wait that follows from the order of operations on a lane, or from an earlier wait of the same lane.
void prune(std::vector<Operation>& operations);

}  // namespace aliquot
