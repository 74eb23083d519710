#include "engine/run/memory/slot_guards.h"

#include <fmt/format.h>
#include <map>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

void refuse_different(const SlotGuards::Slot& first, const SlotGuards::Slot& other) {
  const auto count = [](const SlotGuards::Slot& slot) { return slot.slot.slice_count(); };
  if (count(first) != count(other)) {
    if (count(first) == 0 || count(other) == 0)
      throw UsageError(
          fmt::format("{} and {} use the same pointer, but only one of them as a slice: use slice() for both, or "
                      "different pointers",
                      first.parameter, other.parameter));
    throw UsageError(
        fmt::format("{} is one of {} slices of a pointer, but {} is one of {} slices of the same pointer: expected the "
                    "same number",
                    first.parameter, count(first), other.parameter, count(other)));
  }
  if (count(first) == 0) return;
  if (first.size_bytes != other.size_bytes)
    throw UsageError(
        fmt::format("{} and {} are slices of the same pointer, but have {} and {} bytes: expected slices of one size",
                    first.parameter, other.parameter, first.size_bytes, other.size_bytes));
}

}  // namespace

SlotGuards::SlotGuards(const std::vector<Slot>& slots, const std::string& prefix)
    : slots_(slots), tensors_(slots.size()), range_(arrange(prefix)) {}

/// Returns the tensors of the range, and fills tensors_.
std::vector<GuardRange::Tensor> SlotGuards::arrange(const std::string& prefix) {
  std::map<const void*, std::vector<std::size_t>> of_pointer;
  std::vector<GuardRange::Tensor> tensors;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].slot.empty()) of_pointer[slots_[i].slot.where()].push_back(i);
    if (slots_[i].slot.slice_count() > 0) continue;
    tensors_[i] = tensors.size();
    tensors.push_back({prefix + slots_[i].parameter, slots_[i].size_bytes});
  }
  for (const auto& [pointer, slots] : of_pointer) {
    for (const std::size_t slot : slots) refuse_different(slots_[slots.front()], slots_[slot]);
    if (slots_[slots.front()].slot.slice_count() > 0) arrange_block(slots, prefix, tensors);
  }
  return tensors;
}

/// Adds the tensors of all slices of a pointer. A slice without a parameter, such as the gradient of a frozen layer,
/// gets addresses too.
void SlotGuards::arrange_block(const std::vector<std::size_t>& block, const std::string& prefix,
                               std::vector<GuardRange::Tensor>& tensors) {
  const Slot& first = slots_[block.front()];
  const std::size_t begin = tensors.size();
  for (int64_t index = 0; index < first.slot.slice_count(); ++index)
    tensors.push_back({fmt::format("{}(undeclared slice {} of the pointer of {})", prefix, index, first.parameter),
                       first.size_bytes, index > 0});
  std::map<int64_t, std::size_t> taken;
  for (const std::size_t slot : block) {
    const int64_t index = slots_[slot].slot.slice_index();
    const auto [other, added] = taken.emplace(index, slot);
    if (!added)
      throw UsageError(
          fmt::format("{} and {} are both slice {} of the same pointer: expected a different index for each",
                      slots_[other->second].parameter, slots_[slot].parameter, index));
    tensors_[slot] = begin + static_cast<std::size_t>(index);
    tensors[tensors_[slot]].name = prefix + slots_[slot].parameter;
  }
}

void SlotGuards::set_null() const {
  for (const Slot& each : slots_) each.slot.set_null();
}

void SlotGuards::set(std::size_t slot) const { set(slot, range_.address(tensors_[slot])); }

}  // namespace aliquot
