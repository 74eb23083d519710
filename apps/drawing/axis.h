#pragma once
// Maps values to positions in a drawing.

#include <cstdint>
#include <string>
#include <vector>

namespace aliquot {

struct Span {
  double from = 0, to = 0;
};

/// A linear or logarithmic axis. If all values are equal, the axis covers a wider range.
class Axis {
 public:
  enum class Scale : uint8_t { kEven, kLogarithmic };
  /// Maps `values` to the positions `places`, which may be descending. A logarithmic axis requires values above zero.
  Axis(Scale scale, Span values, Span places);

  double at(double value) const;
  Span values() const { return values_; }
  /// All multiples of a step that lie on the axis. The step is 1, 2 or 5 times a power of ten. It is large enough that
  /// there are at most `most` + 1 multiples.
  std::vector<double> round_ticks(int most) const;
  /// At most `most` powers of `base`, with evenly spaced exponents.
  std::vector<double> power_ticks(double base, int most) const;

 private:
  Scale scale_;
  Span values_, places_;
};

/// A count with three significant digits: "839k", "124M", "1.56B".
std::string count_text(double count);
/// A number of bytes for a tick: "64 MiB".
std::string tick_bytes_text(double bytes);
/// A number for a tick: "0.25", "1500", "12k".
std::string tick_text(double value);

}  // namespace aliquot
