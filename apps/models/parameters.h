#pragma once
// The parameters of a model in the form that the planner accepts, computed from the shape alone.

#include "apps/models/shape.h"
#include "apps/models/tensor_part.h"
#include "engine/plan/model_spec.h"

namespace aliquot {

/// Returns the units, the tensors and the order of uses of a model of this shape. Tensors have the same names as in
/// checkpoints.
ModelSpec parameters_of(const ModelShape& shape, const TensorGroup& tensor = {});

/// Returns a model of `unit_count` equal units with `parameter_count` parameters in total. The units are used one after
/// the other. The last unit also has the remainder of the division.
ModelSpec make_equal_units(int64_t parameter_count, int64_t unit_count);

/// The number of parameters of the model. A unit with several uses counts once.
int64_t parameter_count(const ModelSpec& model);
/// The number of parameters that are not frozen.
int64_t trained_parameter_count(const ModelSpec& model);

}  // namespace aliquot
