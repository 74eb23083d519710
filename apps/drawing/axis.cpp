#include "apps/drawing/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

namespace aliquot {

Axis::Axis(Scale scale, Span values, Span places) : scale_(scale), values_(values), places_(places) {
  if (values_.to > values_.from) return;
  const double middle = values_.from;
  if (scale_ == Scale::kLogarithmic) {
    values_ = {middle / 2, middle * 2};
  } else {
    const double half = middle == 0 ? 1 : std::abs(middle) / 2;
    values_ = {middle - half, middle + half};
  }
}

double Axis::at(double value) const {
  const auto along = [this](double v) { return scale_ == Scale::kLogarithmic ? std::log(v) : v; };
  const double share = (along(value) - along(values_.from)) / (along(values_.to) - along(values_.from));
  return places_.from + share * (places_.to - places_.from);
}

std::vector<double> Axis::round_ticks(int most) const {
  const double rough = (values_.to - values_.from) / std::max(most, 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5., 2., 1.}) {
    if (factor * power >= rough) step = factor * power;
  }
  std::vector<double> ticks;
  const double slack = 1e-9 * step;
  for (double i = std::ceil((values_.from - slack) / step); i * step <= values_.to + slack; ++i)
    ticks.push_back(i * step + 0.0);  // turns -0 into 0
  return ticks;
}

std::vector<double> Axis::power_ticks(double base, int most) const {
  const auto power = [base](double value) { return std::log(value) / std::log(base); };
  const auto first = static_cast<int>(std::ceil(power(values_.from) - 1e-9));
  const auto last = static_cast<int>(std::floor(power(values_.to) + 1e-9));
  int every = 1;
  while ((last - first) / every + 1 > std::max(most, 1)) ++every;
  std::vector<double> ticks;
  for (int exponent = first; exponent <= last; ++exponent) {
    if (exponent % every == 0) ticks.push_back(std::pow(base, exponent));
  }
  return ticks;
}

std::string count_text(double count) {
  constexpr std::array kUnits{"", "k", "M", "B", "T"};
  size_t unit = 0;
  while (count >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", count, kUnits[unit]);
}

std::string tick_bytes_text(double bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

std::string tick_text(double value) {
  if (std::abs(value) >= 1e4) return value < 0 ? "-" + count_text(-value) : count_text(value);
  return std::abs(value) < 1e-12 ? "0" : fmt::format("{:.4g}", value);
}

}  // namespace aliquot
