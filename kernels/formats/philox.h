#pragma once
// Counter-based random numbers (Philox 4x32-10; Salmon, Moraes, Dror and Shaw, 2011). They depend only on the key and
// the element, not on the rank, thread or order. Hosts and GPUs give the same bits.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/formats/host_device.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// The purpose of a random number. It is part of the key, so two purposes in one step never use the same numbers.
enum class RandomUse : uint8_t { kInitialValue, kDropout, kStochasticRounding };

/// Identifies a sequence of random numbers, one for each element of a full parameter.
struct RandomKey {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t parameter = 0;
  RandomUse use = RandomUse::kInitialValue;
};

struct RandomWords {
  uint32_t word[4];
};

/// Philox: ten rounds over a 128-bit counter with a 64-bit key.
ALIQUOT_HOST_DEVICE RandomWords philox4x32_10(RandomWords counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// Returns one random word for each of the elements 4 * quad to 4 * quad + 3 of the full parameter. `quad` must be less
/// than 2^56.
ALIQUOT_HOST_DEVICE RandomWords random_words(const RandomKey& key, int64_t quad) {
  const uint64_t position = static_cast<uint64_t>(quad) | (static_cast<uint64_t>(key.use) << 56);
  const RandomWords counter{
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), key.step, key.parameter}};
  return philox4x32_10(counter, static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32));
}

/// Uniform in [0, 1): a multiple of 2^-24.
ALIQUOT_HOST_DEVICE float uniform_from_word(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// Returns the natural logarithm of a positive normal number, with an error of about 1e-11. Uses only correctly rounded
/// operations, because the log of the C library gives different bits on different machines.
ALIQUOT_HOST_DEVICE double portable_log(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  // The exponent that brings the mantissa into [sqrt(1/2), sqrt(2)): 0x3fe6a09e... is sqrt(1/2).
  const int64_t exponent = static_cast<int64_t>(bits - 0x3fe6a09e667f3bcdu) >> 52;
  bits -= static_cast<uint64_t>(exponent) << 52;
  double mantissa;
  memcpy(&mantissa, &bits, sizeof mantissa);
  // ln m = 2 atanh((m - 1) / (m + 1)), |(m - 1) / (m + 1)| < 0.1716
  const double t = (mantissa - 1.0) / (mantissa + 1.0);
  const double s = t * t;
  double series = 1.0 / 13.0;
  series = series * s + 1.0 / 11.0;
  series = series * s + 1.0 / 9.0;
  series = series * s + 1.0 / 7.0;
  series = series * s + 1.0 / 5.0;
  series = series * s + 1.0 / 3.0;
  series = series * s + 1.0;
  return static_cast<double>(exponent) * 0x1.62e42fefa39efp-1 + 2.0 * t * series;
}

/// Returns a standard normal number: the inverse of the distribution function at (word + 1/2) / 2^32. The result is
/// monotone in `word`, symmetric, and at most 6.34 in magnitude. Uses Wichura's rational approximations with seven
/// digits (AS 241, 1988).
ALIQUOT_HOST_DEVICE float normal_from_word(uint32_t word) {
  const double q = (static_cast<double>(word) - 2147483647.5) * 0x1p-32;
  const double distance = q < 0 ? -q : q;
  if (distance <= 0.425) {
    const double r = 0.180625 - q * q;
    const double top = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
    const double bottom = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
    return static_cast<float>(q * (top / bottom));
  }
  const double r = sqrt(-portable_log(0.5 - distance)) - 1.6;  // the square root is at most 4.79
  const double top = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777;
  const double bottom = (0.12021132975 * r + 0.73700164250) * r + 1.0;
  const double z = top / bottom;
  return static_cast<float>(q < 0 ? -z : z);
}

ALIQUOT_HOST_DEVICE float random_uniform(const RandomKey& key, int64_t element) {
  return uniform_from_word(random_words(key, element >> 2).word[element & 3]);
}

ALIQUOT_HOST_DEVICE float random_normal(const RandomKey& key, int64_t element) {
  return normal_from_word(random_words(key, element >> 2).word[element & 3]);
}

}  // namespace aliquot
#pragma GCC visibility pop
