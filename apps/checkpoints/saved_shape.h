#pragma once
// The model shape that a checkpoint holds: extents in the shapes of its tensors, the rest in its scalars.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/models/shape.h"
#include "checkpoint/file/manifest.h"
#include "sharding/state.h"

namespace aliquot {

/// The fields that the shapes of tensors do not determine.
std::map<std::string, Scalar> shape_scalars(const ModelShape& shape);

/// The shape of a checkpoint of a GPT-2 or Llama; nothing if its parameters are neither's. If the checkpoint does not record
/// its shape (weights imported without a config.json), the number of heads is `heads`, or that of the preset with as many
/// layers and that width, or 0. Throws UsageError, one sentence that begins with `where`, if `heads` contradicts the
/// checkpoint, heads do not divide its tensors, or a scalar has the wrong type or is out of range.
std::optional<ModelShape> saved_shape(const Manifest& manifest, const std::string& where,
                                      std::optional<int64_t> heads = {});

/// Whether the scalars record a shape.
bool records_shape(const std::map<std::string, Scalar>& scalars);

/// The differences between `shape` and the scalars, if these record a shape. Scalars that older versions did not write
/// have the values that those versions trained with.
struct ShapeDifference {
  std::string name;  // of the scalar
  Scalar there, here;
};
std::vector<ShapeDifference> shape_differences(const std::map<std::string, Scalar>& scalars, const ModelShape& shape);

}  // namespace aliquot
