#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <utility>

#include "engine/proof/validate_parts.h"

namespace aliquot {
namespace {

constexpr OperationId kNone = -1;

/// Traverses the schedule and tracks the slots of offloaded data: a copy-in fills a slot, operations use it, and a
/// copy-out follows each change.
class OffloadChecker {
 public:
  explicit OffloadChecker(const Proof& proof) : proof_(proof) {}

  void walk() {
    for (OperationId id = 0; id < static_cast<OperationId>(proof_.plan.schedule.operations.size()); ++id) {
      const Operation& operation = proof_.plan.schedule.operations[id];
      const bool copies = operation.verb == Verb::kCopyIn || operation.verb == Verb::kCopyOut;
      if (copies && operation.lane != Lane::kIo) add(id, fmt::format("{} is not on the io lane", describe(id)));
      for (const Access& access : proof_.accesses.of(id)) touch(id, access);
    }
    for (const auto& [slot, state] : slots_) {
      if (state.changed != kNone)
        add(state.changed,
            fmt::format("no copy-out follows {}, which changes offloaded data", describe(state.changed)));
    }
  }

 private:
  struct Slot {
    OperationId changed = kNone;  // the last operation that wrote the slot since the last copy-out
  };

  void touch(OperationId id, const Access& access) {
    if (!offloaded_role_of(access.role)) return;
    const Verb verb = proof_.plan.schedule.operations[id].verb;
    Slot& slot = slots_[{access.role, access.flat}];
    if (verb == Verb::kCopyIn) {
      if (slot.changed != kNone)
        add(id, fmt::format("{} overwrites a slot that {} changed, but no copy-out has saved the change", describe(id),
                            describe(slot.changed)));
      offloaded_[{access.role, access.flat}] = true;
    } else if (verb == Verb::kCopyOut) {
      if (slot.changed == kNone || !ended(slot.changed, id))
        add(id, fmt::format("{} copies out a slot without a complete change since the last copy-out", describe(id)));
      slot.changed = kNone;
    } else if (access.writes && offloaded_[{access.role, access.flat}]) {
      slot.changed = id;
    }
  }

  bool ended(OperationId earlier, OperationId id) const {
    const Moment now = proof_.order.moment(1, id);
    return proof_.order.ended_here(proof_.order.moment(1, earlier), proof_.order.at_start(now));
  }
  std::string describe(OperationId id) const { return proof_.defects.describe(id); }
  void add(OperationId id, std::string sentence) { proof_.defects.add(DefectKind::kPlace, {id}, std::move(sentence)); }

  const Proof& proof_;
  std::map<std::pair<Role, int32_t>, Slot> slots_;
  std::map<std::pair<Role, int32_t>, bool> offloaded_;  // whether a copy-in has filled the slot at least once
};

}  // namespace

void check_offload(const Proof& proof) {
  const auto& buffers = proof.plan.schedule.buffers;
  if (std::ranges::any_of(buffers, [](const PlannedBuffer& buffer) { return is_offloaded_role(buffer.role); }))
    OffloadChecker(proof).walk();
}

}  // namespace aliquot
