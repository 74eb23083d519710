#pragma once
// Loads weights into the engine of a run that does not train.

#include "apps/train/train_context.h"

namespace aliquot {

/// Allocates the memory of the engine and loads the weights of --init. The model can then compute. Collective. Throws
/// the exceptions of Engine::materialize() and load_initial_weights().
void materialize_weights(const TrainContext& context);

}  // namespace aliquot
