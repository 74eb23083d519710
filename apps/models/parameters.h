#pragma once
// A model's parameters as the planner takes them, without the model.

#include "apps/models/shape.h"
#include "engine/plan/model_spec.h"

namespace aliquot {

/// Units, tensors and order of use of a model of that shape, with the names that its checkpoints have.
ModelSpec parameters_of(const ModelShape& shape);

/// `parameter_count` parameters in `unit_count` equal units, used one after the other; the last takes what is left over.
ModelSpec make_equal_units(int64_t parameter_count, int64_t unit_count);

/// Of all units, each counted once.
int64_t parameter_count(const ModelSpec& model);

}  // namespace aliquot
