#pragma once
// The model's shape in a checkpoint. Most extents follow from the shapes of tensors; scalars hold the other fields.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/models/shape.h"
#include "checkpoint/file/manifest.h"
#include "sharding/state.h"

namespace aliquot {

/// The fields that do not follow from the shapes of tensors, as scalars.
std::map<std::string, Scalar> shape_scalars(const ModelShape& shape);

/// Returns the shape of a GPT-2 or Llama model in a checkpoint; nullopt for other models. If the checkpoint does not
/// record its shape (weights imported without a config.json), the number of heads is `heads`. If `heads` is also unset,
/// the preset with the same layers and width gives the number of heads; without such a preset, the number is 0. Throws
/// UsageError if `heads` contradicts the checkpoint, if the number of heads does not divide the width of a tensor, or
/// if a scalar has the wrong type or is out of range. Messages begin with `where`.
std::optional<ModelShape> saved_shape(const Manifest& manifest, const std::string& where,
                                      std::optional<int64_t> heads = {});

/// Whether `scalars` contains the scalars that shape_scalars() returns.
bool records_shape(const std::map<std::string, Scalar>& scalars);

/// The name of a scalar, and its two different values: in the checkpoint (`saved`) and in a given shape (`given`).
struct ShapeDifference {
  std::string name;
  Scalar saved, given;
};
/// Returns the differences between the scalars and `shape`; empty if the scalars record no shape. A scalar that an
/// older version did not write counts as the value that this version used in training.
std::vector<ShapeDifference> shape_differences(const std::map<std::string, Scalar>& scalars, const ModelShape& shape);

}  // namespace aliquot
