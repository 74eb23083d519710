#pragma once
// 8-bit codes for moments: the dynamic code with zero of block-wise quantization (Dettmers, Lewis, Shleifer and
// Zettlemoyer, "8-bit Optimizers via Block-wise Quantization", 2022). Each code has the same value as in bitsandbytes
// and torchao, so the tables of these libraries also decode checkpoints.
//
// Magnitudes are in seven decades, (10^(i-7), 10^(i-6)] for i = 0 to 6. Each decade is divided into equal cells, twice
// as many as the decade below. The magnitudes that a code can represent are 0, the middle of each cell, and 1. They are
// numbered in ascending order from 0. The signed code has 1 cell in the lowest decade. Its code is 127 plus or minus
// the number, and -1 has no code. The unsigned code has 2 cells in the lowest decade, and its code is the number.
//
// The conversions use no tables. The number, as a function of the magnitude, is linear within each decade, and linear
// with another slope between two decades. From each linear segment to the next, the slope decreases, so the function is
// the minimum of the lines through the segments. Only the last segment, which ends at 1, is steeper than the one before
// it. The value of a number is the maximum of the inverse lines. Compilers can vectorize both functions, which use
// only correctly rounded operations.

#include <algorithm>
#include <cstdint>

#include "kernels/formats/float16.h"
#include "kernels/formats/host_device.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// y = slope * x + offset.
struct CodeLine {
  float slope, offset;
};

/// Return the minimum and the maximum of two floats that are not NaN and not both negative. The functions compare bit
/// patterns as integers, which compilers can vectorize.
ALIQUOT_HOST_DEVICE float lesser(float a, float b) {
  const auto x = static_cast<int32_t>(float_bits(a)), y = static_cast<int32_t>(float_bits(b));
  return float_from_bits(static_cast<uint32_t>(x < y ? x : y));
}
ALIQUOT_HOST_DEVICE float greater(float a, float b) {
  const auto x = static_cast<int32_t>(float_bits(a)), y = static_cast<int32_t>(float_bits(b));
  return float_from_bits(static_cast<uint32_t>(x > y ? x : y));
}

/// The magnitudes of a code whose lowest decade has kCells cells.
template <int kCells>
struct CodeMagnitudes {
  static constexpr int kDecades = 7;
  static constexpr int kTop = 127 * kCells + 1;  // the highest number, which represents magnitude 1

  static constexpr double power_of_ten(int power) {
    double value = 1.0;
    for (int i = 0; i < (power < 0 ? -power : power); ++i) value *= 10.0;
    return power < 0 ? 1.0 / value : value;
  }
  /// The number that represents the middle of the first cell of a decade.
  static constexpr int first(int decade) { return kCells * ((1 << decade) - 1) + 1; }
  /// Return the number of cells of a decade, and the width of each cell.
  static constexpr int cells(int decade) { return kCells << decade; }
  static constexpr double width(int decade) { return 0.9 * power_of_ten(decade - 6) / cells(decade); }
  /// The middle of cell k of a decade.
  static constexpr double middle(int decade, int k) { return power_of_ten(decade - 7) + (k + 0.5) * width(decade); }

  /// Returns the line that maps magnitudes to numbers, with this slope, through magnitude x and number y.
  static constexpr CodeLine number_line(double slope, double x, double y) {
    return {static_cast<float>(slope), static_cast<float>(y - slope * x)};
  }
  static constexpr CodeLine within(int decade) {
    return number_line(1.0 / width(decade), middle(decade, 0), first(decade));
  }
  /// Returns the line that maps magnitudes to numbers between the last cell of a decade and the first cell of the next
  /// decade. For the last decade, the line ends at magnitude 1.
  static constexpr CodeLine beyond(int decade) {
    const double from = middle(decade, cells(decade) - 1), to = decade + 1 < kDecades ? middle(decade + 1, 0) : 1.0;
    return number_line(1.0 / (to - from), to, first(decade + 1));
  }
  static constexpr CodeLine below_all() { return number_line(1.0 / middle(0, 0), 0.0, 0.0); }
  /// Returns the line that maps the numbers of a decade to magnitudes.
  static constexpr CodeLine value_line(int decade) {
    return {static_cast<float>(width(decade)), static_cast<float>(middle(decade, 0) - width(decade) * first(decade))};
  }

  // Constants, so that GPU code need not call the functions above.
  template <int kDecade>
  static constexpr CodeLine kWithin = within(kDecade);
  template <int kDecade>
  static constexpr CodeLine kBeyond = beyond(kDecade);
  template <int kDecade>
  static constexpr CodeLine kValue = value_line(kDecade);
  template <int kOne>
  static constexpr CodeLine kBelowAll = below_all();

  template <int kDecade>
  ALIQUOT_HOST_DEVICE static float least_of(float magnitude, float number) {
    if constexpr (kDecade < kDecades) {
      constexpr CodeLine in = kWithin<kDecade>, out = kBeyond<kDecade>;
      number = lesser(number, in.slope * magnitude + in.offset);
      // Beyond the middle of the decade's last cell, the function follows `out` instead of `in`. If another decade
      // follows, `out` is less steep than `in`, so the minimum selects it. After the last decade, `out` reaches the
      // next number within half a cell, at magnitude 1. It is then steeper than `in`, so the maximum selects it.
      const float after = out.slope * magnitude + out.offset;
      number = kDecade + 1 < kDecades ? lesser(number, after) : greater(number, after);
      return least_of<kDecade + 1>(magnitude, number);
    }
    return number;
  }

  template <int kDecade>
  ALIQUOT_HOST_DEVICE static float greatest_of(float number, float value) {
    if constexpr (kDecade < kDecades) {
      constexpr CodeLine line = kValue<kDecade>;
      return greatest_of<kDecade + 1>(number, greater(value, line.slope * number + line.offset));
    }
    return value;
  }

  /// Returns the number of `magnitude`, which is in [0, 1]. If no number represents the magnitude, interpolates between
  /// the numbers of the two nearest magnitudes.
  ALIQUOT_HOST_DEVICE static float place_of(float magnitude) {
    constexpr CodeLine line = kBelowAll<0>;
    return lesser(least_of<0>(magnitude, line.slope * magnitude + line.offset), static_cast<float>(kTop));
  }
  /// Returns the magnitude that `number`, in [0, kTop], represents.
  ALIQUOT_HOST_DEVICE static float value_of(float number) { return lesser(greatest_of<0>(number, 0.0f), 1.0f); }
};

/// The signed code. of() encodes `ratio`, which is a value divided by the scale of its block. To the result of
/// place_of() it adds `rise`, in [0, 1), and truncates the sum to an integer. A `rise` of 1/2 rounds to nearest. A
/// uniformly random `rise` rounds stochastically, without bias. Ratios beyond [-1, 1] are clamped. A NaN is encoded
/// like a ratio of magnitude 1.
struct SignedCode {
  using Magnitudes = CodeMagnitudes<1>;

  ALIQUOT_HOST_DEVICE static uint8_t of(float ratio, float rise) {
    const uint32_t bits = float_bits(ratio);
    const float magnitude = lesser(float_from_bits(bits & 0x7fffffffu), 1.0f);
    const auto number = static_cast<int32_t>(Magnitudes::place_of(magnitude) + rise);
    const int32_t below = number < 127 ? number : 127;
    return static_cast<uint8_t>(127 + ((bits >> 31) != 0 ? -below : number));
  }
  ALIQUOT_HOST_DEVICE static float value(uint8_t code) {
    const int32_t number = int32_t{code} - 127;
    const float magnitude = Magnitudes::value_of(static_cast<float>(number < 0 ? -number : number));
    return number < 0 ? -magnitude : magnitude;
  }
};

/// The code for values that are never negative, such as second moments. A value above 0 never becomes 0. Otherwise the
/// update could divide a nonzero first moment by eps alone, and the weight would change by far too much.
struct UnsignedCode {
  using Magnitudes = CodeMagnitudes<2>;

  ALIQUOT_HOST_DEVICE static uint8_t of(float ratio, float rise) {
    const float magnitude = lesser(float_from_bits(float_bits(ratio) & 0x7fffffffu), 1.0f);
    const auto number = static_cast<int32_t>(Magnitudes::place_of(magnitude) + rise);
    const int32_t least = float_bits(magnitude) != 0 ? 1 : 0;
    return static_cast<uint8_t>(number > least ? number : least);
  }
  ALIQUOT_HOST_DEVICE static float value(uint8_t code) { return Magnitudes::value_of(static_cast<float>(code)); }
};

/// The scale of a block is its largest magnitude. Magnitudes are compared as bit patterns, so the result does not
/// depend on the order, and NaN is the largest.
ALIQUOT_HOST_DEVICE uint32_t magnitude_bits(float value) { return float_bits(value) & 0x7fffffffu; }

/// If the largest magnitude is below 2^-126, the scale is 0 and the block counts as zeros, so that the inverse is
/// finite.
ALIQUOT_HOST_DEVICE float scale_of(uint32_t greatest_bits) {
  return greatest_bits < 0x00800000u ? 0.0f : float_from_bits(greatest_bits);
}
/// Returns the factor that converts values to ratios, which of() encodes.
ALIQUOT_HOST_DEVICE float inverse_of(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

/// Returns the argument `rise` of of() for stochastic rounding of state number `state` of an element: bits 16 * state
/// to 16 * state + 15 of the element's random word, as a fraction in [0, 1).
ALIQUOT_HOST_DEVICE float rise_of(uint32_t word, int state) {
  return static_cast<float>(static_cast<int32_t>((word >> (16 * state)) & 0xffffu)) * 0x1p-16f;
}
inline constexpr float kNearestRise = 0.5f;

}  // namespace aliquot
#pragma GCC visibility pop
