#pragma once
// Computes the activation memory of a reference model for a plan, without a run.

#include "apps/models/transformer.h"
#include "engine/plan/activations.h"

namespace aliquot {

/// The device of a planned run.
struct PlannedDevice {
  DeviceKind kind = DeviceKind::kHost;
  int threads = 1;                                      // host threads of a rank, each of which needs scratch memory
  OperandRounding rounding = OperandRounding::kNone;    // of products on GPUs
  AttentionKernels attention = AttentionKernels::kOwn;  // on GPUs
};

/// The activations that a model of this shape declares on the device. Throws UsageError if shape and options do not fit
/// together.
ActivationSpec activations_of(const ModelShape& shape, const ModelOptions& options, const PlannedDevice& device);

}  // namespace aliquot
