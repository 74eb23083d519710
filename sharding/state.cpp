#include "sharding/state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kCountLimit = int64_t{1} << 58;  // with 8-byte elements, sizes stay below 2^62 bytes

}  // namespace

std::optional<int64_t> checked_element_count(std::span<const int64_t> shape) {
  if (shape.size() > static_cast<size_t>(kShapeRankLimit)) return std::nullopt;
  int64_t product = 1;
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent < 0 || extent > kCountLimit) return std::nullopt;
    if (extent == 0) {
      empty = true;
      continue;
    }
    if (product > kCountLimit / extent) return std::nullopt;
    product *= extent;
  }
  return empty ? 0 : product;
}

int64_t StateTensor::element_count() const {
  if (const auto count = checked_element_count(shape)) return *count;
  throw UsageError(fmt::format(
      "tensor {} has the invalid shape {}: expected at most 32 extents, none negative, and at most 2^58 elements", path,
      fmt::join(shape, "x")));
}

}  // namespace aliquot
