#pragma once
// Pseudo-random values for tests: the same on every machine and with every standard library.

#include <cstdint>
#include <vector>

namespace aliquot::test {

/// The splitmix64 generator.
class RandomValues {
 public:
  explicit RandomValues(uint64_t seed = 1) : state_(seed * 0x9E3779B97F4A7C15u) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// Returns a uniformly distributed value in [-1, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-52 - 1.0; }
  /// Returns an approximately normally distributed value with variance 1, from the sum of twelve uniform values.
  double normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum * 0.5;
  }
  std::vector<float> floats(int64_t count, float scale = 1.0f) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(uniform()) * scale;
    return values;
  }

 private:
  uint64_t state_;
};

}  // namespace aliquot::test
