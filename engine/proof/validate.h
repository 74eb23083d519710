#pragma once
// The proof that a schedule may be carried out: by all ranks at once, step after step.

#include <optional>
#include <string>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

enum class DefectKind : uint8_t {
  kMalformed,    // a number that names nothing
  kWait,         // waits for what is issued later: a cycle
  kUse,          // the model's code is not run as declared
  kGathered,     // a unit used while it is not whole, or never let go
  kGradient,     // not reduced exactly once a micro-batch (or step), or not all of it before the norm
  kUpdate,       // not updated, or published, exactly once
  kPlace,        // two buffers in one place, or one outside of its memory, too small, or touched while nobody's
  kRace,         // bytes written while another operation, here or on another rank, may still touch them
  kCollectives,  // ranks that do not issue the same collectives in the same order
};
std::string_view name(DefectKind kind);

struct Defect {
  DefectKind kind;
  std::vector<OperationId> operations;  // the ones it is about
  std::string sentence;
};

/// Every defect found, up to some hundred; none: proved, for every rank and every step. Does not trust the planner: takes
/// nothing but the waits, the lanes and the order of issue as given. Time grows with operations, not with ranks.
std::vector<Defect> validate(const Plan& plan);

/// Nothing runs that was not proved: throws FaultError, with the first defect, unless there is none.
void prove(const Plan& plan);

/// Whether ranks that hold these two plans would issue the same collectives in the same order; if not, the first that
/// differs.
std::optional<Defect> first_collective_mismatch(const Plan& a, const Plan& b);

}  // namespace aliquot
