#pragma once
// Connects a model to the engine.

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/models/model.h"
#include "engine/engine.h"

namespace aliquot {

struct WrapOptions {
  bool decay_all = false;  // weight decay also applies to norms and biases
  bool trainable = true;
};

/// Declares to the engine the model's units, their tensors, the order of uses and the saved activations. The model must
/// outlive the engine.
void wrap(Engine& engine, Model& model, const WrapOptions& options = {});

/// Returns a function that computes the declared initial values. Each value depends only on the seed, the parameter's
/// name and the element, so it is the same for every sharding.
Initialize initial_values(const Model& model, uint64_t seed);

/// Runs forward and backward of one micro-batch, without a pipeline. The batch of the model must be set.
void run_micro_batch(Engine& engine, Model& model);

/// Returns a micro-batch of a data coordinate of this step. The spans must stay valid until the next call.
using BatchOf = std::function<TokenBatch(int micro_batch, int data_coordinate)>;

/// Runs all passes of a step, and of a replay before them, in the order that the engine gives, or as a graph if the
/// engine uses one. Returns, for each micro-batch, the loss summed over its tokens. Returns zeros if this rank's
/// pipeline stage does not run the last use.
std::vector<double> run_passes(Engine& engine, Model& model, const BatchOf& batch_of);

/// Runs one evaluation between steps: the forward of all uses of this rank's pipeline stage. The batch of the model
/// must be set.
void run_evaluation(Engine& engine, Model& model);

}  // namespace aliquot
