#include "engine/run/memory/pointer_slot.h"

#include <fmt/format.h>

#include "kernels/system/error.h"

namespace aliquot {

PointerSlot slice(PointerSlot base, int64_t index, int64_t count) {
  constexpr int64_t kMaxCount = int64_t{1} << 20;
  if (count < 1 || count > kMaxCount)
    throw UsageError(fmt::format("slice() was called with the count {}: expected 1 to {}", count, kMaxCount));
  if (index < 0 || index >= count)
    throw UsageError(fmt::format("slice() was called with the index {}: expected 0 to {}, because the count is {}",
                                 index, count - 1, count));
  if (base.empty()) return base;
  if (base.slice_count() > 0) throw UsageError("slice() was called with a slot that is already a slice");
  base.slice_index_ = index;
  base.slice_count_ = count;
  return base;
}

}  // namespace aliquot
