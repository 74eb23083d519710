#include "engine/proof/validate.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

#include "engine/plan/pipeline.h"
#include "engine/plan/sizes.h"
#include "engine/plan/use_collectives.h"
#include "engine/proof/validate_parts.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

bool in_range(int64_t value, std::size_t count) { return value >= 0 && value < static_cast<int64_t>(count); }

/// Whether the operation names a collective that its use declares. Other verbs name none.
bool has_valid_collective(const Plan& plan, const Operation& operation) {
  if (operation.verb != Verb::kUseCollective) return operation.collective == -1;
  const auto& uses = plan.model.activations.uses;
  return in_range(operation.operand, uses.size()) &&
         in_range(operation.collective, uses[operation.operand].collectives.size());
}

bool has_valid_operand(const Plan& plan, const Operation& operation) {
  if (!in_range(static_cast<int64_t>(operation.lane), kLaneCount)) return false;
  if (!in_range(operation.micro_batch, static_cast<std::size_t>(plan.schedule.micro_batch_count))) return false;
  if (!in_range(static_cast<int64_t>(operation.verb), kVerbTable.size())) return false;
  if (operation.group != info(operation.verb).group || !has_valid_collective(plan, operation)) return false;
  switch (info(operation.verb).operand) {
    case Operand::kNone: return operation.operand == 0;
    case Operand::kUse: return in_range(operation.operand, plan.model.uses.size());
    case Operand::kUnit: return in_range(operation.operand, plan.model.units.size());
    case Operand::kMatrixGroup: return in_range(operation.operand, plan.matrix_groups.size());
  }
  return false;
}

/// Whether the buffer is in a valid space. Stored copies of offloaded data are persistent and in an offload store. The
/// shared range holds only parameters. Other buffers are in the space of their role.
bool has_valid_space(const PlannedBuffer& buffer) {
  if (buffer.space == Space::kSharedRange) return buffer.always && buffer.role == Role::kParameters;
  return buffer.space == info(buffer.role).space && (buffer.always || !is_offloaded_role(buffer.role));
}

std::size_t owner_count(const Plan& plan, Owner owner) {
  switch (owner) {
    case Owner::kFlat: return plan.flats.size();
    case Owner::kUse: return plan.model.uses.size();
    case Owner::kMatrixGroup: return plan.matrix_groups.size();
    case Owner::kNone: break;
  }
  return 0;
}

void check_buffer(const Plan& plan, const PlannedBuffer& buffer, Defects& defects) {
  const std::size_t count = plan.schedule.operations.size();
  const bool lives = in_range(buffer.first, count) && in_range(buffer.last, count) && buffer.first <= buffer.last;
  const Owner owner = info(buffer.role).owner;
  const bool owned = owner == Owner::kNone ? buffer.flat == -1 : in_range(buffer.flat, owner_count(plan, owner));
  const auto batches = static_cast<std::size_t>(plan.schedule.micro_batch_count);
  const bool may = info(buffer.role).per_micro_batch, must = may && is_activation(buffer.role);
  const bool keyed = buffer.micro_batch == -1 ? !must : may && in_range(buffer.micro_batch, batches);
  const bool named = in_range(static_cast<int64_t>(buffer.group), kGroupCount) &&
                     in_range(static_cast<int64_t>(buffer.role), kRoleCount);
  const auto number = static_cast<std::size_t>(buffer.role);
  const std::string role = number < kRoleCount ? std::string(name(buffer.role)) : fmt::format("{}", number);
  if (lives && owned && keyed && named && has_valid_space(buffer) && buffer.size_bytes >= 0) return;
  defects.add(
      DefectKind::kMalformed, {},
      fmt::format(
          "the buffer of role {} that exists from operation {} to {} has an invalid role, owner, micro-batch, group, "
          "space, size or lifetime",
          role, buffer.first, buffer.last));
}

/// Describes each collective in one line, with the bytes that other ranks read. Includes those of tensor groups.
std::vector<std::pair<OperationId, std::string>> collectives(const Plan& plan) {
  std::vector<std::pair<OperationId, std::string>> lines;
  Accesses accesses(plan);
  for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id) {
    const Operation& operation = plan.schedule.operations[id];
    if (!is_collective(plan, operation) && operation.group != GroupId::kTensor) continue;
    std::string line = title(plan, id);
    if (operation.verb == Verb::kUseCollective)
      line += fmt::format(" \"{}\" of use {}", collective_of(plan.model, operation).name, operation.operand);
    line += fmt::format(" on the {} lane", name(operation.lane));
    for (const Access& access : accesses.of(id)) {
      if (access.readers != GroupId::kRank)
        line += fmt::format(", {} bytes", needed_bytes(plan, access.role, access.flat));
    }
    lines.emplace_back(id, std::move(line));
  }
  return lines;
}

}  // namespace

std::string_view name(DefectKind kind) {
  static constexpr std::array<std::string_view, 12> kNames = {"malformed",   "wait",   "use",      "gathered",
                                                              "gradient",    "update", "place",    "race",
                                                              "collectives", "group",  "transfer", "cut"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string Defects::describe(OperationId id) const { return fmt::format("{} (operation {})", title(plan_, id), id); }

std::string Defects::describe(const PlannedBuffer& buffer) const {
  if (buffer.flat < 0) return std::string(name(buffer.role));
  return fmt::format("{} of {}", name(buffer.role), owner(plan_, buffer));
}

std::string describe_use(const ModelSpec& model, int32_t use) {
  if (use < 0 || std::cmp_greater_equal(use, model.uses.size())) return fmt::format("use {}", use);
  std::string units;
  for (const UnitId unit : model.uses[use]) {
    const bool exists = in_range(unit, model.units.size());
    units += (units.empty() ? "" : "+") + (exists ? model.units[unit].name : fmt::format("unit {}", unit));
  }
  return fmt::format("use {} ({})", use, units);
}

std::string StageDefects::describe(const StageOperation& at) const {
  const Plan& plan = stages_[static_cast<std::size_t>(at.stage)];
  return fmt::format("{} of micro-batch {} (operation {} of pipeline stage {})", title(plan, at.operation),
                     plan.schedule.operations[at.operation].micro_batch, at.operation, at.stage);
}

void check_well_formed(const Plan& plan, Defects& defects) {
  if (plan.schedule.micro_batches_in_flight < 1) {
    defects.add(DefectKind::kMalformed, {},
                fmt::format("the number of micro-batches in flight is {}: expected 1 or more",
                            plan.schedule.micro_batches_in_flight));
    return;
  }
  if (auto found = invalid_matrix_groups(plan)) return defects.add(DefectKind::kMalformed, {}, std::move(*found));
  const auto& operations = plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    if (!has_valid_operand(plan, operations[id])) {
      defects.add(DefectKind::kMalformed, {id},
                  fmt::format("operation {} has an invalid verb, operand, group, lane, collective or micro-batch", id));
      continue;
    }
    for (const Wait& wait : operations[id].after) {
      if (!in_range(wait.operation, operations.size())) {
        defects.add(
            DefectKind::kMalformed, {id},
            fmt::format("{} waits for operation {}, which does not exist", defects.describe(id), wait.operation));
      } else if (wait.of != GroupId::kRank && !is_peer_group(wait.of)) {
        defects.add(DefectKind::kMalformed, {id},
                    fmt::format("{} waits for the ranks of the group {}: expected the group rank, shard or replica",
                                defects.describe(id), name(wait.of)));
      } else if (!wait.of_previous_step && wait.operation >= id) {
        const bool valid = has_valid_operand(plan, operations[wait.operation]);
        defects.add(
            DefectKind::kWait, {id, wait.operation},
            fmt::format("{} waits for {}, which is issued later: expected an earlier operation", defects.describe(id),
                        valid ? defects.describe(wait.operation) : fmt::format("operation {}", wait.operation)));
      }
    }
  }
  for (const PlannedBuffer& buffer : plan.schedule.buffers) check_buffer(plan, buffer, defects);
}

namespace {

/// `passes`: those of all pipeline stages. Requires that the tables, the pipeline stage and the order of passes of the
/// plan are valid.
std::vector<Defect> validate(const Plan& plan, const PassOrder& passes) {
  Defects defects(plan);
  check_well_formed(plan, defects);
  if (!defects.empty()) return defects.take();
  // Every dependency now points backward in issue order, which is the order of collectives too. So there is no
  // deadlock.
  const HappensBefore order(plan);
  Accesses accesses(plan);
  const Proof proof{plan, passes[static_cast<std::size_t>(plan.stage.index)], order, accesses, defects};
  check_uses(proof);
  check_collectives(proof);
  check_transfers(proof);
  check_quantized(proof);
  check_state_digests(proof);
  check_gradient_digests(proof);
  check_gradients(proof);
  check_matrices(proof);
  check_places(proof);
  check_offload(proof);
  check_races(proof);
  return defects.take();
}

void throw_if_any(const std::vector<Defect>& defects) {
  if (defects.empty()) return;
  throw FaultError(fmt::format("the planner wrote an invalid schedule: {}. This is a bug in Aliquot; please report it",
                               defects.front().sentence));
}

}  // namespace

std::vector<Defect> validate(const Plan& plan) {
  // Each check requires that the earlier ones succeed.
  for (const auto invalid : {&invalid_tables, &invalid_stage, &invalid_order}) {
    if (auto found = invalid(plan)) return {{DefectKind::kMalformed, {}, std::move(*found)}};
  }
  return validate(plan, pass_order_of(plan.policy, plan.stage));
}

void prove(const Plan& plan) { throw_if_any(validate(plan)); }

void prove(const std::vector<Plan>& stages) {
  StageDefects defects(stages);
  // This check comes first, because pass_order_of() and validate() rely on what it checks.
  check_cut(stages, defects);
  throw_if_any(defects.take());
  const PassOrder passes = pass_order_of(stages.front().policy, stages.front().stage);
  for (const Plan& stage : stages) throw_if_any(validate(stage, passes));
  throw_if_any(validate_stages(stages));
}

std::optional<Defect> first_collective_mismatch(const Plan& a, const Plan& b) {
  const auto ours = collectives(a), theirs = collectives(b);
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const bool in_ours = i < ours.size(), in_theirs = i < theirs.size();
    if (in_ours && in_theirs && ours[i].second == theirs[i].second) continue;
    std::vector<OperationId> operations;
    if (in_ours) operations.push_back(ours[i].first);
    if (in_theirs) operations.push_back(theirs[i].first);
    return Defect{DefectKind::kCollectives, std::move(operations),
                  fmt::format("collective {} of the step is {} in one plan and {} in the other", i,
                              in_ours ? ours[i].second : "none", in_theirs ? theirs[i].second : "none")};
  }
  return std::nullopt;
}

}  // namespace aliquot
