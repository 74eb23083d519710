#pragma once
// Eight-bit codes for a block's moments: the dynamic code with zero of block-wise quantisation (Dettmers, Lewis, Shleifer and
// Zettlemoyer, "8-bit Optimizers via Block-wise Quantization", 2022), the same values in the same order as bitsandbytes
// and torchao have them, so a checkpoint's codes mean what their tables say.
//
// Magnitudes lie in seven decades, (10^(i-7), 10^(i-6)] for i = 0 .. 6, each cut into equal cells, twice as many as the
// decade below, of which a code is the middle; beside them are 0 and 1. Signed: 1 cell in the least decade, code = number
// + 127, and no -1. Unsigned: 2 cells, code = number.
//
// Nothing is looked up. The number as a function of the magnitude is a line within each decade, another between two, their
// slopes falling: so it is the least of all lines. And the value of a number is the greatest of the inverse lines. Both
// vectorise, with exactly rounded operations only.

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

/// The lesser and the greater of floats of which none is a NaN and not both are negative: as integers, which
/// compilers vectorise.
ALIQUOT_HOST_DEVICE float lesser(float a, float b) {
  const auto x = static_cast<int32_t>(float_bits(a)), y = static_cast<int32_t>(float_bits(b));
  return float_from_bits(static_cast<uint32_t>(x < y ? x : y));
}
ALIQUOT_HOST_DEVICE float greater(float a, float b) {
  const auto x = static_cast<int32_t>(float_bits(a)), y = static_cast<int32_t>(float_bits(b));
  return float_from_bits(static_cast<uint32_t>(x > y ? x : y));
}

/// The magnitudes of a code whose least decade has kCells cells.
template <int kCells>
struct CodeMagnitudes {
  static constexpr int kDecades = 7;
  static constexpr int kTop = 127 * kCells + 1;  // the number of 1

  static constexpr double power_of_ten(int power) {
    double value = 1.0;
    for (int i = 0; i < (power < 0 ? -power : power); ++i) value *= 10.0;
    return power < 0 ? 1.0 / value : value;
  }
  /// Number of a decade's first cell; how many it has; how wide each is; the middle of its k-th.
  static constexpr int first(int decade) { return kCells * ((1 << decade) - 1) + 1; }
  static constexpr int cells(int decade) { return kCells << decade; }
  static constexpr double width(int decade) { return 0.9 * power_of_ten(decade - 6) / cells(decade); }
  static constexpr double middle(int decade, int k) { return power_of_ten(decade - 7) + (k + 0.5) * width(decade); }

  /// Number as a function of magnitude through (x, y), and the inverse.
  static constexpr CodeLine number_line(double slope, double x, double y) {
    return {static_cast<float>(slope), static_cast<float>(y - slope * x)};
  }
  static constexpr CodeLine within(int decade) {
    return number_line(1.0 / width(decade), middle(decade, 0), first(decade));
  }
  /// From the last cell of a decade to the first of the next, or to 1.
  static constexpr CodeLine beyond(int decade) {
    const double from = middle(decade, cells(decade) - 1), to = decade + 1 < kDecades ? middle(decade + 1, 0) : 1.0;
    return number_line(1.0 / (to - from), to, first(decade + 1));
  }
  static constexpr CodeLine below_all() { return number_line(1.0 / middle(0, 0), 0.0, 0.0); }
  static constexpr CodeLine value_line(int decade) {
    return {static_cast<float>(width(decade)), static_cast<float>(middle(decade, 0) - width(decade) * first(decade))};
  }

  // As constants, so that a GPU's code calls none of the above.
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
      // Half a cell lies between the last middle and 1: the one line that is steeper than the line below it.
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

  /// Where `magnitude`, in [0, 1], lies among the numbers: k for the value of k, in proportion between two.
  ALIQUOT_HOST_DEVICE static float place_of(float magnitude) {
    constexpr CodeLine line = kBelowAll<0>;
    return lesser(least_of<0>(magnitude, line.slope * magnitude + line.offset), static_cast<float>(kTop));
  }
  /// The value of a number in [0, kTop].
  ALIQUOT_HOST_DEVICE static float value_of(float number) { return lesser(greatest_of<0>(number, 0.0f), 1.0f); }
};

/// `rise` in [0, 1) is added to a place before it is cut to a number: 1/2 rounds to the nearest, uniform noise
/// stochastically, right on average. Ratios are in [-1, 1]; what is not is taken as the nearer end, a NaN as the upper.
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

/// For what is never negative. What is above 0 never becomes 0: a second moment that was rounded away beside a first that
/// was not would divide it by eps alone, and the weight would leap.
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

/// A block's scale is its greatest magnitude, found on bit patterns: in any order the same, and a NaN is the greatest.
ALIQUOT_HOST_DEVICE uint32_t magnitude_bits(float value) { return float_bits(value) & 0x7fffffffu; }

/// A block whose greatest magnitude is below 2^-126 counts as zeros, so that the inverse is finite.
ALIQUOT_HOST_DEVICE float scale_of(uint32_t greatest_bits) {
  return greatest_bits < 0x00800000u ? 0.0f : float_from_bits(greatest_bits);
}
/// What values are multiplied by to become ratios.
ALIQUOT_HOST_DEVICE float inverse_of(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

/// The rise of stochastic rounding: state k of an element takes bits 16 k to 16 k + 15 of the element's word.
ALIQUOT_HOST_DEVICE float rise_of(uint32_t word, int state) {
  return static_cast<float>(static_cast<int32_t>((word >> (16 * state)) & 0xffffu)) * 0x1p-16f;
}
inline constexpr float kNearestRise = 0.5f;

}  // namespace aliquot
#pragma GCC visibility pop
