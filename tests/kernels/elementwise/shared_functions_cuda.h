#pragma once
// Functions that host and GPU share, called on the GPU for a test of the host.

#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/formats/philox.h"

namespace aliquot {

/// to[i] = random_normal(key, i), on the GPU of `stream`.
void draw_normals_cuda(Stream& stream, float* to, RandomKey key, int64_t count);

}  // namespace aliquot
