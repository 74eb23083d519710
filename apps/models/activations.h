#pragma once
// What a reference model leaves for its backward, for who plans it and does not run it.

#include "apps/models/transformer.h"
#include "engine/activations.h"

namespace aliquot {

/// As the model of that shape declares it on a host, for so many threads a rank. Throws UsageError when shape and options
/// do not fit.
ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options, int threads);

}  // namespace aliquot
