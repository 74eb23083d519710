#pragma once
// Replaces apps/models/cuda/async_copy_cuda.h on simulated GPUs.

#include "tests/support/simulated/simulated_cuda_grid.h"

namespace aliquot::cuda {

template <int kBytes>
void start_copy(void* to_shared, const void* from, bool source_exists) {
  aliquot::simulated::start_copy(to_shared, from, kBytes, source_exists ? kBytes : 0);
}

inline void wait_for_copies() { aliquot::simulated::wait_for_copies(); }

}  // namespace aliquot::cuda
