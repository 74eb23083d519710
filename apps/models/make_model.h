#pragma once
// A model of any family that aliquot brings along.

#include <memory>

#include "apps/models/transformer.h"

namespace aliquot {

/// Throws UsageError when the shape or the sequence does not fit. The backend must outlive the model.
std::unique_ptr<Model> make_model(const ModelShape& shape, const ModelOptions& options, Backend& backend);

}  // namespace aliquot
