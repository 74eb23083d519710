#pragma once
// The angles of rotary position embeddings, for every scaling of Rope.

#include "apps/models/shape.h"

namespace aliquot {

/// The rotation of element pair `pair` of a head in sequences of `sequence` tokens, in radians per position. This is
/// f = theta^(-2 pair / head width), or with a scaling:
/// - kLinear: f / factor.
/// - kDynamic: f, with a larger theta if the sequence is longer than the context. theta then depends on both lengths.
/// - kYarn: f for pairs that make many rotations in the original context, f / factor for pairs that make few.
/// - kLlama3: f / factor if the wavelength is above original_context / low_freq_factor. f if it is below
///   original_context / high_freq_factor.
/// The last two interpolate in between.
double rotary_frequency(const ModelShape& shape, int64_t sequence, int64_t pair);

/// Fills `cosines` and `sines` for the positions from `first` to `sequence` - 1: one row of head_width / 2 values for
/// each, multiplied by Rope::attention_factor. The bits of a row do not depend on `first`.
void compute_rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines, int64_t first = 0);

}  // namespace aliquot
