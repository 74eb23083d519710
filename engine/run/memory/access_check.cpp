#include "engine/run/memory/access_check.h"

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>

namespace aliquot {
namespace {

constexpr uint8_t bits(Touch how) { return static_cast<uint8_t>(how); }

}  // namespace

AccessCheck::Declared& AccessCheck::entry(Role role, int32_t flat) {
  const auto found =
      std::ranges::find_if(entries_, [&](const Declared& each) { return each.role == role && each.flat == flat; });
  return found != entries_.end() ? *found : entries_.emplace_back(Declared{role, flat, 0, 0});
}

void AccessCheck::begin(OperationId operation) {
  operation_ = operation;
  skipped_ = false;
  entries_.clear();
  for (const Access& access : accesses_.of(operation))
    entry(access.role, access.flat).declared |= bits(access.writes ? Touch::kWrites : Touch::kReads);
}

void AccessCheck::touch(Role role, int32_t flat, Touch how) {
  if (operation_ < 0)
    throw std::logic_error(fmt::format("{} buffer {} is touched while no operation runs", name(role), flat));
  Declared& what = entry(role, flat);
  what.touched |= bits(how);
  if (const uint8_t more = what.touched & ~what.declared; more != 0)
    fail(what, more, "which Accesses does not declare");
}

void AccessCheck::end() {
  for (const Declared& what : entries_) {
    const uint8_t left = what.declared & ~what.touched;
    if (left != 0 && !skipped_) fail(what, left, "as Accesses declares, but did not");
  }
  operation_ = -1;
}

void AccessCheck::fail(const Declared& what, uint8_t kinds, std::string_view defect) const {
  const std::string_view verb = kinds == bits(Touch::kReads)    ? "read"
                                : kinds == bits(Touch::kWrites) ? "write"
                                                                : "read and write";
  throw std::logic_error(fmt::format("operation {}, {}, is to {} {} buffer {}, {}", operation_,
                                     title(plan_, operation_), verb, name(what.role), what.flat, defect));
}

}  // namespace aliquot
