#pragma once
// From values to places on a drawing.

#include <cstdint>
#include <string>
#include <vector>

namespace aliquot {

struct Span {
  double from = 0, to = 0;
};

/// Where a value lies, on an even scale or by its logarithm. A range of no extent is widened.
class Axis {
 public:
  enum class Scale : uint8_t { kEven, kLogarithmic };
  /// `values` lie along `places`, which may run backwards. Logarithmic: values above zero.
  Axis(Scale scale, Span values, Span places);

  double at(double value) const;
  Span values() const { return values_; }
  /// 1, 2 or 5 times a power of ten apart; about `most` of them.
  std::vector<double> round_ticks(int most) const;
  /// Powers of `base`, every so many that there are at most `most`.
  std::vector<double> power_ticks(double base, int most) const;

 private:
  Scale scale_;
  Span values_, places_;
};

/// Three figures: "839k", "124M", "1.56B".
std::string count_text(double count);
/// A power of two of bytes as a tick: "64 MiB".
std::string tick_bytes_text(double bytes);
/// "0.25", "1500", "12k": short, for ticks.
std::string tick_text(double value);

}  // namespace aliquot
