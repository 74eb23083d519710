#pragma once
// The angles of rotary position embeddings.

#include "apps/models/shape.h"

namespace aliquot {

/// The rotation of element pair `pair` of a head, in radians per position.
double rotary_frequency(const ModelShape& shape, int64_t pair);

/// Fills `cosines` and `sines`: `sequence` rows of head_width / 2 values each.
void compute_rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines);

}  // namespace aliquot
