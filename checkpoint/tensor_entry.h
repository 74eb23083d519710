#pragma once
// One tensor of a checkpoint, whole: what it is called, what it is, and where its bytes lie in state.h5.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"
#include "sharding/state.h"

namespace aliquot {

inline constexpr size_t kPathBytesLimit = 1024;

struct TensorEntry {
  std::string path;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  int64_t size_bytes = 0;
  int64_t file_offset = -1;  // -1: nowhere, as it has no elements

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

/// The dtype called that.
std::optional<DType> dtype_named(std::string_view name);

/// Why `path` cannot name a tensor in a file: too long, an empty, "." or ".." component, a control character, not
/// UTF-8. Empty: it can.
std::string path_defect(std::string_view path);

/// UTF-8 without a NUL, as attributes and JSON can hold it.
bool is_plain_text(std::string_view text);

/// Of paths in order: one that is the group another lies in, or is there twice. Empty: none.
std::string path_conflict(std::span<const TensorEntry> sorted);

/// "float32 50257x768", and "float32 scalar" for no extents.
std::string describe(DType dtype, std::span<const int64_t> shape);

/// s with the quotes and control characters that a message must not carry replaced.
std::string printable(std::string_view text);

}  // namespace aliquot
