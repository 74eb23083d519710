#include <algorithm>
#include <optional>

#include "engine/plan/sizes.h"
#include "engine/plan/writer/writer.h"

namespace aliquot {
namespace {

constexpr OperationId kNone = -1;

/// Identifies a buffer by its role and flat buffer.
struct FlatRole {
  Role role;
  int32_t flat;
};

/// An operation that accesses offloaded data.
struct OffloadedAccess {
  OperationId operation;
  UnitId unit;  // for a matrix group: its first unit
  std::vector<FlatRole> flat_roles;
  bool writes;
  OperationId before = kNone;  // the copy-in is inserted before the operation with this id
  OperationId copy_in = kNone, copy_out = kNone;
};

class OffloadWriter {
 public:
  OffloadWriter(const Plan& plan, ScheduleDraft& draft)
      : plan_(plan),
        draft_(draft),
        parameters_(plan.policy.offload_parameters),
        state_(plan.policy.offload_state),
        accesses_of_flat_(plan.flats.size()) {}

  void run() {
    if (parameters_ == Offload::kNone && state_ == Offload::kNone) return;
    if (parameters_ == Offload::kDisk || state_ == Offload::kDisk) draft_.alignment_bytes = kPlacePageBytes;
    if (parameters_ != Offload::kNone) list(Verb::kGather, {Role::kStagedShard});
    if (parameters_ != Offload::kNone) list(Verb::kCompareState, {Role::kStagedShard});
    if (state_ != Offload::kNone) list(Verb::kMuonMomentum, {Role::kOptimizer});
    std::vector<Role> updated;
    if (parameters_ != Offload::kNone) updated.push_back(Role::kParameters);
    if (state_ != Offload::kNone) updated.insert(updated.end(), {Role::kMaster, Role::kOptimizer});
    list(Verb::kUpdate, updated);
    insert_copies();
    move_to_stores();
  }

 private:
  /// Appends the operations with this verb that access offloaded buffers. Each copy-in is issued before the
  /// previous operation with this verb, so that the copy overlaps with that operation. The first copy-in for an update
  /// is issued after the last model code before the update.
  void list(Verb verb, const std::vector<Role>& roles) {
    OperationId model_code = kNone, last = kNone;
    const bool writes = verb != Verb::kGather && verb != Verb::kCompareState;
    for (OperationId id = 0; id < static_cast<OperationId>(draft_.operations.size()); ++id) {
      const Operation& operation = draft_.operations[id];
      if (last == kNone && (is_model_code(operation.verb) || operation.verb == Verb::kUseCollective)) model_code = id;
      if (operation.verb != verb) continue;
      std::vector<FlatRole> flat_roles = flat_roles_of(operation, roles);
      if (flat_roles.empty()) continue;
      OperationId before = writes ? model_code + 1 : id;
      // A flat buffer has one slot per role at a time. So if the previous operation is of the same unit, the copy-in
      // must follow it.
      if (last != kNone) before = draft_.operations[last].operand == operation.operand ? last + 1 : last;
      for (const FlatRole& what : flat_roles) {
        auto& of_flat = accesses_of_flat_[what.flat];
        if (of_flat.empty() || of_flat.back() != accesses_.size()) of_flat.push_back(accesses_.size());
      }
      accesses_.push_back({id, plan_.flats[flat_roles.front().flat].unit, std::move(flat_roles), writes, before});
      last = id;
    }
  }

  std::vector<FlatRole> flat_roles_of(const Operation& operation, const std::vector<Role>& roles) const {
    const bool of_group = operation.verb == Verb::kMuonMomentum, updates = operation.verb == Verb::kUpdate;
    const auto& flats =
        of_group ? plan_.matrix_groups[operation.operand].flats : plan_.flats_of_unit[operation.operand];
    std::vector<FlatRole> flat_roles;
    for (const int32_t f : flats) {
      if (updates && !plan_.flats[f].trainable) continue;
      if (operation.verb == Verb::kCompareState && !plan_.compares_outside_updates(f)) continue;
      for (const Role role : roles) {
        // kMuonMomentum accesses the optimizer state of matrices, and the update does not.
        if (updates && role == Role::kOptimizer && plan_.flats[f].matrices) continue;
        if (needed_bytes(plan_, role, f) > 0) flat_roles.push_back({role, f});
      }
    }
    return flat_roles;
  }

  /// Inserts the copies, and renumbers all operations.
  void insert_copies() {
    const std::vector<Operation> old = std::move(draft_.operations);
    draft_.operations.clear();
    std::vector<std::vector<OffloadedAccess*>> before(old.size()), after(old.size());
    for (OffloadedAccess& need : accesses_) {
      before[need.before].push_back(&need);
      if (need.writes) after[need.operation].push_back(&need);
    }
    std::vector<OperationId> now(old.size());
    for (std::size_t id = 0; id < old.size(); ++id) {
      for (OffloadedAccess* need : before[id]) need->copy_in = add_copy(Verb::kCopyIn, *need, old[need->operation]);
      now[id] = static_cast<OperationId>(draft_.operations.size());
      draft_.operations.push_back(old[id]);
      for (OffloadedAccess* need : after[id]) need->copy_out = add_copy(Verb::kCopyOut, *need, old[id]);
    }
    const auto renumber = [&](std::vector<Wait>& waits) {
      for (Wait& wait : waits) wait.operation = now[wait.operation];
    };
    for (Operation& operation : draft_.operations) renumber(operation.after);
    for (auto& [buffer, ends] : draft_.buffers) {
      buffer.first = buffer.always ? 0 : now[buffer.first];
      buffer.last = buffer.always ? static_cast<OperationId>(draft_.operations.size()) - 1 : now[buffer.last];
      renumber(ends);
    }
    for (OffloadedAccess& need : accesses_) {
      need.operation = now[need.operation];
      draft_.operations[need.operation].after.push_back({need.copy_in});
      if (need.writes) draft_.operations[need.copy_out].after.push_back({need.operation});
    }
  }

  /// All copies run on the io lane, in order, so copies of the same bytes need no waits for one another.
  OperationId add_copy(Verb verb, const OffloadedAccess& need, const Operation& what) {
    draft_.operations.push_back({verb, info(verb).group, info(verb).lane, need.unit, what.micro_batch, {}});
    return static_cast<OperationId>(draft_.operations.size()) - 1;
  }

  /// Moves persistent buffers to the offload stores, and adds a slot for each access.
  void move_to_stores() {
    std::vector<DraftBuffer> slots;
    for (auto& [buffer, ends] : draft_.buffers) {
      const std::optional<Role> home = buffer.always ? offloaded_role_of(buffer.role) : std::nullopt;
      const bool is_parameters = buffer.role == Role::kParameters;
      const Offload to = is_parameters ? parameters_ : state_;
      if (!home || to == Offload::kNone || buffer.size_bytes == 0) continue;
      add_slots(buffer, slots);
      buffer.role = *home;
      buffer.space = is_parameters ? Space::kOffloadedParameters : Space::kOffloadedState;
      buffer.booked = to == Offload::kHost && !plan_.topology.has_gpus();
    }
    draft_.buffers.insert(draft_.buffers.end(), slots.begin(), slots.end());
  }

  void add_slots(const PlannedBuffer& buffer, std::vector<DraftBuffer>& slots) const {
    for (const std::size_t index : accesses_of_flat_[buffer.flat]) {
      const OffloadedAccess& need = accesses_[index];
      const auto what = std::ranges::find_if(need.flat_roles, [&](const FlatRole& slot) {
        return slot.flat == buffer.flat && offloaded_role_of(slot.role) == offloaded_role_of(buffer.role);
      });
      if (what == need.flat_roles.end()) continue;
      const OperationId last = need.writes ? need.copy_out : need.operation;
      slots.push_back({{.role = what->role,
                        .category = Category::kStaging,
                        .flat = buffer.flat,
                        .size_bytes = buffer.size_bytes,
                        .first = need.copy_in,
                        .last = last},
                       {{last, shard_group_if(!need.writes)}}});  // in a gather, other ranks read the slot
    }
  }

  const Plan& plan_;
  ScheduleDraft& draft_;
  Offload parameters_, state_;
  std::vector<OffloadedAccess> accesses_;
  std::vector<std::vector<std::size_t>> accesses_of_flat_;
};

}  // namespace

void offload(const Plan& plan, ScheduleDraft& draft) { OffloadWriter(plan, draft).run(); }

std::vector<std::vector<BufferId>> copied_slots(const Schedule& schedule) {
  std::vector<std::vector<BufferId>> slots(schedule.operations.size());
  for (BufferId b = 0; b < static_cast<BufferId>(schedule.buffers.size()); ++b) {
    const PlannedBuffer& buffer = schedule.buffers[b];
    if (buffer.always || !offloaded_role_of(buffer.role)) continue;
    if (schedule.operations[buffer.first].verb == Verb::kCopyIn) slots[buffer.first].push_back(b);
    if (schedule.operations[buffer.last].verb == Verb::kCopyOut) slots[buffer.last].push_back(b);
  }
  return slots;
}

}  // namespace aliquot
