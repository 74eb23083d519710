#pragma once
// One tensor of a checkpoint, whole: what it is called, what it is, and where its bytes lie in state.h5.

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
  int64_t file_offset = -1;  // -1: nowhere, as it has no elements

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

/// The dtype called that.
std::optional<DType> dtype_named(std::string_view name);

/// Of paths in order: one that is the group another lies in, or is there twice. Empty: none.
std::string path_conflict(std::span<const TensorEntry> sorted);

/// "float32 50257x768", and "float32 scalar" for no extents.
std::string describe(DType dtype, std::span<const int64_t> shape);

}  // namespace aliquot
