#pragma once
// Compares split backward passes of a reference model with whole ones.

#include "apps/models/backend.h"
#include "apps/models/shape.h"
#include "kernels/device/device.h"

namespace aliquot::test {

/// Expects that split backward passes give the bits of whole ones, for all modes and types of gradients. `compute` is
/// the type of matrix products. A micro-batch has two sequences of `sequence` tokens.
void expect_equal_bits(Device& device, Stream& stream, Backend& backend, const ModelShape& shape, DType compute,
                       int64_t sequence);

}  // namespace aliquot::test
