#pragma once
// The parameters of a model in the form that the planner accepts, computed from the shape alone.

#include "apps/models/shape.h"
#include "engine/plan/model_spec.h"

namespace aliquot {

/// Units, tensors and order of uses of a model of this shape. Tensors have the names used in checkpoints.
ModelSpec parameters_of(const ModelShape& shape);

/// A model of `unit_count` equal units, used one after the other, with `parameter_count` parameters in total. The last
/// unit also has the remainder of the division.
ModelSpec make_equal_units(int64_t parameter_count, int64_t unit_count);

/// The number of parameters of all units, each counted once.
int64_t parameter_count(const ModelSpec& model);

}  // namespace aliquot
