#pragma once
// Creates a reference model of any family.

#include <memory>

#include "apps/models/transformer.h"

namespace aliquot {

/// Throws UsageError if the shape is invalid or the sequence is longer than the context. The backend must outlive the
/// model.
std::unique_ptr<Model> make_model(const ModelShape& shape, const ModelOptions& options, Backend& backend);

}  // namespace aliquot
