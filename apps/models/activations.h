#pragma once
// The activation memory of a reference model, for plans without a run.

#include "apps/models/transformer.h"
#include "engine/plan/activations.h"

namespace aliquot {

/// The activations that a model of this shape declares on a device of this kind. `threads` is the number of threads of
/// a rank on a host, each of which needs scratch. Throws UsageError if shape and options do not fit together.
ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options, DeviceKind device, int threads);

}  // namespace aliquot
