#include <algorithm>

#include "engine/plan/writer/writer.h"

namespace aliquot {
namespace {
constexpr OperationId kNone = -1;
}

void prune(std::vector<Operation>& operations) {
  // seen[lane][source lane].operation[of_previous_step][on_all]: the last operation that the lane has waited for.
  struct Seen {
    OperationId operation[2][2] = {{kNone, kNone}, {kNone, kNone}};
  };
  Seen seen[kLaneCount][kLaneCount];
  for (Operation& operation : operations) {
    std::vector<Wait> kept;
    std::stable_sort(operation.after.begin(), operation.after.end(),
                     [](const Wait& a, const Wait& b) { return a.operation > b.operation; });
    for (const Wait& wait : operation.after) {
      const Lane source = operations[wait.operation].lane;
      auto& latest = seen[static_cast<int>(operation.lane)][static_cast<int>(source)].operation[wait.of_previous_step];
      const bool kept_by_order = !wait.on_all && source == operation.lane;
      if (kept_by_order || latest[1] >= wait.operation || (!wait.on_all && latest[0] >= wait.operation)) continue;
      // A wait for an operation of this step implies that the same lane has finished the previous step.
      const auto& now = seen[static_cast<int>(operation.lane)][static_cast<int>(source)].operation[0];
      if (wait.of_previous_step && (now[1] != kNone || (!wait.on_all && now[0] != kNone))) continue;
      latest[wait.on_all] = std::max(latest[wait.on_all], wait.operation);
      kept.push_back(wait);
    }
    std::sort(kept.begin(), kept.end(), [](const Wait& a, const Wait& b) { return a.operation < b.operation; });
    operation.after = std::move(kept);
  }
}

}  // namespace aliquot
