#pragma once
// A model and the engine, introduced to each other: all there is to wrapping.

#include <cstdint>

#include "apps/models/model.h"
#include "engine/engine.h"

namespace aliquot {

/// Declares the model's units, their tensors, the order of use and what each keeps. The model must outlive the engine.
void wrap(Engine& engine, Model& model, bool decay_all = false);

/// The values that the model's declaration asks for, drawn by seed, parameter and element: the same whoever draws them.
Initialize initial_values(const Model& model, uint64_t seed);

/// One micro-batch, forward and backward, each use inside its scope. The model has its batch.
void run_micro_batch(Engine& engine, Model& model);

/// One pass of forward alone, between steps. The model has its batch.
void run_evaluation(Engine& engine, Model& model);

}  // namespace aliquot
