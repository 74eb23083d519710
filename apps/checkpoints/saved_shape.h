#pragma once
// Reads the shape of the model from a checkpoint. Most sizes follow from the shapes of the tensors; scalars hold the
// other fields.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/models/hugging_face/weights.h"
#include "apps/models/shape.h"
#include "checkpoint/file/manifest.h"
#include "sharding/state.h"

namespace aliquot {

/// Returns the fields of `shape` that do not follow from the shapes of tensors, as scalars of a checkpoint.
std::map<std::string, Scalar> shape_scalars(const ModelShape& shape);

/// Returns the shape of a GPT-2 or Llama model in a checkpoint; nullopt for other models. If the checkpoint does not
/// record its shape (weights imported without a config.json), the number of heads is `heads`. If `heads` is also unset,
/// the preset with the same layers and width gives the number of heads; without such a preset, the number is 0. Throws
/// UsageError if `heads` contradicts the checkpoint, if the number of heads does not divide the width of a tensor, or
/// if a scalar has the wrong type or is out of range. Messages begin with `where`.
std::optional<ModelShape> saved_shape(const Manifest& manifest, const std::string& where,
                                      std::optional<int64_t> heads = {});

/// The same for parameters and scalars that come from different files.
std::optional<ModelShape> saved_shape(std::span<const NamedShape> parameters,
                                      const std::map<std::string, Scalar>& scalars, const std::string& where,
                                      std::optional<int64_t> heads = {});

/// Returns the names and shapes of the parameters in a checkpoint.
std::vector<NamedShape> parameters_of(const Manifest& manifest);

/// Whether a checkpoint with these scalars records its shape: it has the scalars that shape_scalars() returns.
bool records_shape(const std::map<std::string, Scalar>& scalars);

/// The name of a scalar, and its two different values: in the checkpoint (`saved`) and in a given shape (`given`).
struct ShapeDifference {
  std::string name;
  Scalar saved, given;
};
/// Returns the differences between the scalars and `shape`; empty if the scalars record no shape. Older versions of
/// Aliquot did not write all scalars. A missing scalar counts as the value that these versions used in training.
std::vector<ShapeDifference> shape_differences(const std::map<std::string, Scalar>& scalars, const ModelShape& shape);

}  // namespace aliquot
