#pragma once
// The reference models' layers on a GPU.

#include <memory>

#include "apps/models/model_loops.h"

namespace aliquot {

/// For one rank on a GPU, which must outlive it; compute_on() comes before the first layer. Throws UnavailableError where this build has no GPU parts, or
/// this machine not what they need.
std::unique_ptr<ModelLoops> make_cuda_model_loops(Device& device);

}  // namespace aliquot
