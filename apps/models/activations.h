#pragma once
// What a reference model leaves for its backward, for who plans it and does not run it.

#include "apps/models/transformer.h"
#include "engine/plan/activations.h"

namespace aliquot {

/// As the model of that shape declares it on a device of that kind; `threads`: a rank's on a host, each of which has scratch.
/// Throws UsageError when shape and options do not fit.
ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options, DeviceKind device, int threads);

}  // namespace aliquot
