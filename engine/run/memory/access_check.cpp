#include "engine/run/memory/access_check.h"

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>

namespace aliquot {
namespace {

constexpr uint8_t bits(AccessMode how) { return static_cast<uint8_t>(how); }

}  // namespace

AccessCheck::DeclaredAccess& AccessCheck::entry(Role role, int32_t flat) {
  const auto found = std::ranges::find_if(
      entries_, [&](const DeclaredAccess& each) { return each.role == role && each.flat == flat; });
  return found != entries_.end() ? *found : entries_.emplace_back(DeclaredAccess{role, flat, 0, 0});
}

void AccessCheck::begin(OperationId operation) {
  operation_ = operation;
  skipped_ = false;
  entries_.clear();
  for (const Access& access : accesses_.of(operation))
    entry(access.role, access.flat).declared |= bits(access.writes ? AccessMode::kWrites : AccessMode::kReads);
}

void AccessCheck::declare_access(Role role, int32_t flat, AccessMode how) {
  if (operation_ < 0)
    throw std::logic_error(fmt::format("{} buffer {} is accessed while no operation runs", name(role), flat));
  DeclaredAccess& what = entry(role, flat);
  what.touched |= bits(how);
  if (const uint8_t more = what.touched & ~what.declared; more != 0)
    fail(what, more, "is not among the declared accesses of the operation");
}

void AccessCheck::end() {
  for (const DeclaredAccess& what : entries_) {
    const uint8_t left = what.declared & ~what.touched;
    if (left != 0 && !skipped_) fail(what, left, "is declared in Accesses, but did not take place");
  }
  operation_ = -1;
}

void AccessCheck::fail(const DeclaredAccess& what, uint8_t kinds, std::string_view defect) const {
  const std::string_view verb = kinds == bits(AccessMode::kReads)    ? "read"
                                : kinds == bits(AccessMode::kWrites) ? "write"
                                                                     : "read and write";
  throw std::logic_error(fmt::format("operation {} ({}): {} of {} buffer {} {}", operation_, title(plan_, operation_),
                                     verb, name(what.role), what.flat, defect));
}

}  // namespace aliquot
