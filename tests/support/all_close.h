#pragma once
// Comparisons of arrays that report the position of a difference.

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

namespace aliquot::test {

/// Succeeds if the largest difference is at most `tolerance` times the largest expected absolute value.
template <typename Real>
testing::AssertionResult all_close(const std::vector<Real>& got, const std::vector<double>& expected,
                                   double tolerance) {
  if (got.size() != expected.size())
    return testing::AssertionFailure() << got.size() << " values, expected " << expected.size();
  double largest = 0, worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!std::isfinite(difference)) return testing::AssertionFailure() << "element " << i << " is " << got[i];
    largest = std::max(largest, std::abs(expected[i]));
    if (difference > worst) {
      worst = difference;
      where = i;
    }
  }
  if (worst <= tolerance * largest) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "element " << where << " is " << got[where] << ", expected " << expected[where]
                                     << ": off by " << worst / largest << " times the largest value";
}

/// Succeeds if all elements are equal bit for bit.
inline testing::AssertionResult same_bits(const std::vector<float>& got, const std::vector<float>& expected) {
  if (got.size() != expected.size())
    return testing::AssertionFailure() << got.size() << " values, expected " << expected.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(float)) != 0) {
      return testing::AssertionFailure() << "element " << i << " is " << got[i] << ", expected " << expected[i];
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace aliquot::test
