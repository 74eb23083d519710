#pragma once
// The reference models' layers on a GPU.

#include <memory>

#include "apps/models/backend.h"

namespace aliquot {

/// For one rank on a GPU, which must outlive it; compute_on() comes before the first layer. Throws UnavailableError where this build has no GPU parts, or
/// this machine not what they need.
std::unique_ptr<Backend> make_cuda_backend(Device& device);

}  // namespace aliquot
