#include "engine/proof/validate.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/proof/validate_parts.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

bool in_range(int64_t value, std::size_t count) { return value >= 0 && value < static_cast<int64_t>(count); }

bool names_something(const Plan& plan, const Operation& operation) {
  if (!in_range(static_cast<int64_t>(operation.lane), kLaneCount)) return false;
  if (!in_range(operation.micro_batch, static_cast<std::size_t>(plan.schedule.micro_batch_count))) return false;
  switch (operation.verb) {
    case Verb::kForward:
    case Verb::kRecompute:
    case Verb::kBackward: return in_range(operation.place, plan.model.uses.size());
    case Verb::kNorm: return operation.place == 0;
    case Verb::kBlend:
    case Verb::kCollect:
    case Verb::kOrthogonalize:
    case Verb::kScatter: return in_range(operation.place, plan.matrix_groups.size());
    case Verb::kGather:
    case Verb::kRefresh:
    case Verb::kRelease:
    case Verb::kReduce:
    case Verb::kExchange:
    case Verb::kSpread:
    case Verb::kUpdate:
    case Verb::kPublish:
    case Verb::kCopyIn:
    case Verb::kCopyOut: return in_range(operation.place, plan.model.units.size());
  }
  return false;
}

/// Homes hold what is offloaded, always; the shared range whole parameters; and what a group reads lies in its memory.
bool lies_where_it_can(const Plan& plan, const PlannedBuffer& buffer) {
  const bool replicas = plan.policy.replica_count > 1;
  const bool encoded = buffer.role == Role::kEncodedSums || buffer.role == Role::kEncodedReceived;
  const bool exchanged = buffer.role == Role::kAcross || buffer.role == Role::kReduced ||
                         buffer.role == Role::kSquares || buffer.role == Role::kExchangeStaging || encoded;
  const bool of_peers = replicas && exchanged;
  switch (buffer.space) {
    case Space::kArena: return !is_home(buffer.role) && !of_peers;
    case Space::kPeers: return of_peers;
    case Space::kSharedRange: return buffer.always && buffer.role == Role::kParameters;
    case Space::kParametersHome: return buffer.always && buffer.role == Role::kParametersHome;
    case Space::kStateHome: return buffer.always && is_home(buffer.role) && buffer.role != Role::kParametersHome;
  }
  return false;
}

void check_buffer(const Plan& plan, const PlannedBuffer& buffer, Defects& defects) {
  const std::size_t count = plan.schedule.operations.size();
  const bool lives = in_range(buffer.first, count) && in_range(buffer.last, count) && buffer.first <= buffer.last;
  const std::size_t owners = is_of_use(buffer.role)     ? plan.model.uses.size()
                             : is_of_group(buffer.role) ? plan.matrix_groups.size()
                                                        : plan.flats.size();
  const bool owned = is_nobodys(buffer.role) ? buffer.flat == -1 : in_range(buffer.flat, owners);
  if (lives && owned && lies_where_it_can(plan, buffer) && buffer.size_bytes >= 0) return;
  defects.add(DefectKind::kMalformed, {},
              fmt::format("a buffer of role {} from operation {} to {} is none that a step can have", name(buffer.role),
                          buffer.first, buffer.last));
}

/// One line a collective, as a rank tells its peers what it is about to do.
std::vector<std::pair<OperationId, std::string>> collectives(const Plan& plan) {
  std::vector<std::pair<OperationId, std::string>> lines;
  Accesses accesses(plan);
  for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id) {
    const Operation& operation = plan.schedule.operations[id];
    if (!communicates(plan, operation)) continue;
    std::string line = fmt::format("{} on the {} lane", title(plan, id), name(operation.lane));
    for (const Access& access : accesses.of(id)) {
      if (access.by_peers) line += fmt::format(", {} bytes", needed_bytes(plan, access.role, access.flat));
    }
    lines.emplace_back(id, std::move(line));
  }
  return lines;
}

}  // namespace

std::string_view name(DefectKind kind) {
  static constexpr std::array<std::string_view, 9> kNames = {"malformed", "wait",  "use",  "whole",      "gradient",
                                                             "update",    "place", "race", "collectives"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string Defects::what(OperationId id) const { return fmt::format("{} (operation {})", title(plan_, id), id); }

std::string Defects::what(const PlannedBuffer& buffer) const {
  if (buffer.flat < 0) return std::string(name(buffer.role));
  return fmt::format("{} of {}", name(buffer.role), owner(plan_, buffer));
}

void check_form(const Plan& plan, Defects& defects) {
  const auto& operations = plan.schedule.operations;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    if (!names_something(plan, operations[id])) {
      defects.add(DefectKind::kMalformed, {id}, fmt::format("operation {} is about nothing there is", id));
      continue;
    }
    for (const Wait& wait : operations[id].after) {
      if (!in_range(wait.operation, operations.size())) {
        defects.add(DefectKind::kMalformed, {id},
                    fmt::format("{} waits for operation {}, which is none", defects.what(id), wait.operation));
      } else if (!wait.of_previous_step && wait.operation >= id) {
        defects.add(
            DefectKind::kWait, {id, wait.operation},
            fmt::format("{} waits for {}, which is issued after it", defects.what(id), defects.what(wait.operation)));
      }
    }
  }
  for (const PlannedBuffer& buffer : plan.schedule.buffers) check_buffer(plan, buffer, defects);
}

std::vector<Defect> validate(const Plan& plan) {
  Defects defects(plan);
  check_form(plan, defects);
  if (!defects.empty()) return defects.take();
  // From here on every edge points forward in the order of issue, in which collectives meet: there is no cycle.
  const Order order(plan);
  Accesses accesses(plan);
  const Proof proof{plan, order, accesses, defects};
  check_uses(proof);
  check_encoded(proof);
  check_gradients(proof);
  check_matrices(proof);
  check_places(proof);
  check_homes(proof);
  check_races(proof);
  return defects.take();
}

void prove(const Plan& plan) {
  const auto defects = validate(plan);
  if (defects.empty()) return;
  throw FaultError(
      fmt::format("the planner wrote a schedule that does not hold: {}. This is an error of Aliquot; please report it",
                  defects.front().sentence));
}

std::optional<Defect> same_collectives(const Plan& a, const Plan& b) {
  const auto ours = collectives(a), theirs = collectives(b);
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const bool here = i < ours.size(), there = i < theirs.size();
    if (here && there && ours[i].second == theirs[i].second) continue;
    std::vector<OperationId> operations;
    if (here) operations.push_back(ours[i].first);
    if (there) operations.push_back(theirs[i].first);
    return Defect{DefectKind::kCollectives, std::move(operations),
                  fmt::format("collective {} of the step is {} here and {} there", i, here ? ours[i].second : "none",
                              there ? theirs[i].second : "none")};
  }
  return std::nullopt;
}

}  // namespace aliquot
