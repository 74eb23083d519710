#pragma once
// Kernels that call functions shared by host and GPU, so that tests can compare both.

#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/formats/philox.h"

namespace aliquot {

/// Sets to[i] = random_normal(key, i) for i in [0, count), on the stream's GPU.
void draw_normals_cuda(Stream& stream, float* to, RandomKey key, int64_t count);

}  // namespace aliquot
