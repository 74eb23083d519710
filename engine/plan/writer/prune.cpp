#include <algorithm>
#include <array>

#include "engine/plan/writer/writer.h"

namespace aliquot {
namespace {

constexpr OperationId kNone = -1;

/// For each group, the last operation of one lane for which another lane has waited on all ranks of the group.
class Waited {
 public:
  Waited() { last_.fill(kNone); }

  /// Returns the last operation that has certainly ended on all ranks of `group`.
  OperationId of(GroupId group) const {
    OperationId last = kNone;
    for (std::size_t wide = 0; wide < last_.size(); ++wide) {
      if (covers(static_cast<GroupId>(wide), group)) last = std::max(last, last_[wide]);
    }
    return last;
  }
  void add(const Wait& wait) {
    OperationId& last = last_[static_cast<std::size_t>(wait.of)];
    last = std::max(last, wait.operation);
  }

 private:
  std::array<OperationId, kGroupCount> last_;
};

}  // namespace

void prune(std::vector<Operation>& operations) {
  struct {
    Waited this_step, previous_step;
  } waited[kLaneCount][kLaneCount];  // indexed by waiting lane, then source lane
  for (Operation& operation : operations) {
    std::vector<Wait> kept;
    std::stable_sort(operation.after.begin(), operation.after.end(),
                     [](const Wait& a, const Wait& b) { return a.operation > b.operation; });
    for (const Wait& wait : operation.after) {
      const Lane source = operations[wait.operation].lane;
      auto& [this_step, previous_step] = waited[static_cast<int>(operation.lane)][static_cast<int>(source)];
      if (wait.of == GroupId::kRank && source == operation.lane) continue;  // a lane runs its operations in order
      Waited& same_step = wait.of_previous_step ? previous_step : this_step;
      if (same_step.of(wait.of) >= wait.operation) continue;
      // A wait for an operation of this step implies that the operation's lane has finished the previous step.
      if (wait.of_previous_step && this_step.of(wait.of) != kNone) continue;
      same_step.add(wait);
      kept.push_back(wait);
    }
    std::sort(kept.begin(), kept.end(), [](const Wait& a, const Wait& b) { return a.operation < b.operation; });
    operation.after = std::move(kept);
  }
}

}  // namespace aliquot
