#pragma once
// Connects a model to the engine.

#include <cstdint>

#include "apps/models/model.h"
#include "engine/engine.h"

namespace aliquot {

/// Declares to the engine the model's units, their tensors, the order of uses and the saved activations. The model must
/// outlive the engine.
void wrap(Engine& engine, Model& model, bool decay_all = false);

/// Returns a function that computes the declared initial values. Each value depends only on the seed, the parameter's
/// name and the element, so it is the same for every sharding.
Initialize initial_values(const Model& model, uint64_t seed);

/// Runs forward and backward of one micro-batch. The batch of the model must be set.
void run_micro_batch(Engine& engine, Model& model);

/// Runs one forward pass without backward, between steps. The batch of the model must be set.
void run_evaluation(Engine& engine, Model& model);

}  // namespace aliquot
