#pragma once
// Computes the activation memory of a reference model for a plan, without a run.

#include "apps/models/transformer.h"
#include "engine/plan/activations.h"

namespace aliquot {

/// The activations that a model of this shape declares on a device of this kind. `threads` is the number of host
/// threads of a rank, each of which needs scratch memory. `rounding` is that of a GPU's products. Throws UsageError if
/// shape and options do not fit together.
ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options, DeviceKind device, int threads,
                              OperandRounding rounding = OperandRounding::kNone);

}  // namespace aliquot
