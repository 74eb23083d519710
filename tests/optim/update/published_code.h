#pragma once
// The dynamic code by its published definition: the midpoints of the cells of 10^(i-6) * linspace(0.1, 1), in double.
// nearest_code() searches for the nearest value. This file shares no code with optim/update/dynamic_code.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace aliquot {

inline std::vector<double> published_code(bool is_signed) {
  std::vector<double> values = {0.0, 1.0};
  for (int i = 0; i < 7; ++i) {
    const int cells = is_signed ? 1 << i : 2 << i;
    for (int k = 0; k < cells; ++k) {
      const double from = 0.1 + 0.9 * k / cells, to = 0.1 + 0.9 * (k + 1) / cells;
      const double middle = std::pow(10.0, i - 6) * (from + to) / 2.0;
      values.push_back(middle);
      if (is_signed) values.push_back(-middle);
    }
  }
  std::ranges::sort(values);
  return values;
}

/// Returns the index of the value nearest to x. If `tie` is not null, sets it to the distance of x from the midpoint of
/// its two neighboring values, relative to the distance between these values.
inline int nearest_code(const std::vector<double>& code, double x, double* tie = nullptr) {
  const auto above = std::ranges::lower_bound(code, x) - code.begin();
  if (above == 0 || above == static_cast<std::ptrdiff_t>(code.size())) {
    if (tie != nullptr) *tie = 1.0;
    return above == 0 ? 0 : static_cast<int>(code.size()) - 1;
  }
  const double upper = code[static_cast<std::size_t>(above)], lower = code[static_cast<std::size_t>(above) - 1];
  const double part = (x - lower) / (upper - lower);
  if (tie != nullptr) *tie = std::abs(part - 0.5);
  return static_cast<int>(part >= 0.5 ? above : above - 1);
}

}  // namespace aliquot
