#include "checkpoint/file/tensor_entry.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace aliquot {

std::optional<DType> dtype_named(std::string_view text) {
  for (DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kInt16, DType::kUInt8}) {
    if (name(dtype) == text) return dtype;
  }
  return std::nullopt;
}

std::string path_conflict(std::span<const TensorEntry> sorted) {
  std::set<std::string_view> paths;
  for (const TensorEntry& entry : sorted) {
    if (!paths.insert(entry.path).second) return entry.path;
  }
  for (const TensorEntry& entry : sorted) {
    const std::string_view path = entry.path;
    for (size_t slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/', slash + 1)) {
      if (paths.contains(path.substr(0, slash))) return std::string(path.substr(0, slash));
    }
  }
  return {};
}

std::string describe(DType dtype, std::span<const int64_t> shape) {
  return shape.empty() ? fmt::format("{} scalar", name(dtype))
                       : fmt::format("{} {}", name(dtype), fmt::join(shape, "x"));
}

}  // namespace aliquot
