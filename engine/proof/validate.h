#pragma once
// The validator: checks that a schedule is correct for all ranks and all steps.

#include <optional>
#include <string>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

enum class DefectKind : uint8_t {
  kMalformed,    // an index is out of range, or a table or the order of passes is invalid
  kWait,         // an operation waits for one that is issued after it, so neither can start
  kUse,          // model code does not run in the declared order
  kGathered,     // a unit is used while it is not gathered, or never released
  kGradient,     // a gradient is not reduced exactly once per micro-batch (or step), or not before the norm
  kUpdate,       // a unit is not updated, or its parameters are not all-gathered, exactly once
  kPlace,        // buffers overlap, are outside of their memory or too small, or are accessed outside of their lifetime
  kRace,         // bytes are written while another operation, on this or another rank, may still access them
  kCollectives,  // ranks do not issue the same collectives in the same order
  kGroup,        // a buffer does not name the smallest group with all ranks that access it
  kTransfer,     // pipeline stages do not send and receive the same data, or not in an order without deadlock
  kCut,          // the plans of pipeline stages differ, are invalid, or do not contain each use and unit exactly once
};
std::string_view name(DefectKind kind);

struct Defect {
  DefectKind kind;
  std::vector<OperationId> operations;  // the operations concerned; may be empty
  std::string sentence;
};

/// Returns the defects of a schedule, at most 200. An empty result proves the schedule correct for all ranks and steps.
/// Does not use the planner's reasoning: reads only the operations, lanes, waits and buffers. Computes the order of
/// passes of all pipeline stages. prove() computes that order only once for all plans.
std::vector<Defect> validate(const Plan& plan);

/// Returns the defects of all pipeline stages together, at most 200. `stages`: the plans of all pipeline stages, in
/// order, without defects of their own. An empty result proves:
/// - All plans are of the same model, layout, options and mesh, and their order of passes is valid. All replicas of a
///   pipeline stage are placed alike on nodes. Together the plans contain each use exactly once, in order, and each
///   unit on one pipeline stage. Each schedule computes the uses of its pipeline stage and no others.
/// - Both pipeline stages of each transfer name the same data and memory.
/// - All pipeline stages together cannot deadlock. Models two kinds of execution. In the first, each lane is a separate
///   queue. In the second, each rank runs all its transfers in one queue, as a GPU with one communication stream does.
/// If the first proof fails, the other two are omitted. The time is linear in the total size of the plans, except for a
/// logarithm of the number of transfers. Each plan has the whole model and the topology of all ranks. With many
/// pipeline stages and few micro-batches, these are larger than the schedules.
std::vector<Defect> validate_stages(const std::vector<Plan>& stages);

/// Throws FaultError, with the first defect, if validate() finds any. The engine calls it before it runs a plan.
void prove(const Plan& plan);
/// Throws FaultError, with the first defect, if validate() of a stage or validate_stages() finds any.
void prove(const std::vector<Plan>& stages);

/// Returns the first difference if ranks with these two plans would not issue the same collectives in the same order.
std::optional<Defect> first_collective_mismatch(const Plan& a, const Plan& b);

}  // namespace aliquot
