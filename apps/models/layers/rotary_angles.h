#pragma once
// The angles of rotary position embeddings.

#include "apps/models/shape.h"

namespace aliquot {

/// The rotation of pair `pair` of a head, in radians per position.
double rotary_frequency(const ModelShape& shape, int64_t pair);

/// Fills `sequence` x head_width / 2 cosines and sines.
void compute_rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines);

}  // namespace aliquot
