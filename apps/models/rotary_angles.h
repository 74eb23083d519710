#pragma once
// The angles of rotary positions.

#include "apps/models/shape.h"

namespace aliquot {

/// The base of the angles' speeds, as in Llama 3.
inline constexpr double kRotaryBase = 500000.0;
/// What the longer contexts of Llama 3.1 and later change: speeds whose wave is longer than the whole first context are
/// divided by the factor, those four times shorter kept, and the ones between mixed.
inline constexpr double kRotaryFirstContext = 8192.0, kRotarySlowWaves = 1.0, kRotaryFastWaves = 4.0;

/// Radians a position of pair `pair` of a head.
double rotary_speed(const ModelShape& shape, int64_t pair);

/// Fills `sequence` x head_width / 2 cosines and sines.
void fill_rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines);

}  // namespace aliquot
