#pragma once
// The angles of rotary positions.

#include "apps/models/shape.h"

namespace aliquot {

/// Radians a position of pair `pair` of a head.
double rotary_frequency(const ModelShape& shape, int64_t pair);

/// Fills `sequence` x head_width / 2 cosines and sines.
void compute_rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines);

}  // namespace aliquot
