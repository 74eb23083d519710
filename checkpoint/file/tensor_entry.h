#pragma once
// One full tensor of a checkpoint: its path, shape and dtype, and its range of bytes in state.h5.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/formats/dtype.h"
#include "sharding/state.h"
#include "sharding/state_names.h"

namespace aliquot {

struct TensorEntry {
  std::string path;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  int64_t size_bytes = 0;
  int64_t file_offset = -1;  // byte offset in state.h5; -1 if the tensor has no elements

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

/// Returns the dtype with this name, or nullopt if there is none.
std::optional<DType> dtype_named(std::string_view name);

/// Returns a path that occurs twice or that is also the HDF5 group of another tensor, such as "a" if "a/b" exists.
/// Returns "" if there is no conflict.
std::string path_conflict(std::span<const TensorEntry> sorted);

/// Returns text such as "float32 50257x768", or "float32 scalar" for an empty shape.
std::string describe(DType dtype, std::span<const int64_t> shape);

}  // namespace aliquot
