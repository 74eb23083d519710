#pragma once
// Shared by the tests of loops: values that expose errors, misaligned arrays with guards, and bitwise comparisons.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "kernels/elementwise/host_loops.h"
#include "kernels/formats/dtype.h"
#include "kernels/formats/float16.h"

namespace aliquot {

/// Counts near multiples of the vector and block sizes, and a large count.
inline constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 255, 256, 257, 1023, 1025, 5000, 1'000'003};

inline constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

/// An array that starts `misaligned_elements` elements after the beginning of a cache line. Guards on both sides detect
/// writes outside the array.
class Elements {
 public:
  Elements(DType dtype, int64_t count, int64_t misaligned_elements = 0)
      : dtype_(dtype), count_(count), storage_(static_cast<std::size_t>(size_bytes() + 3 * kGuardBytes), kGuard) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    start_ =
        kGuardBytes + (64 - address % 64) % 64 + static_cast<std::size_t>(misaligned_elements * element_bytes(dtype));
  }

  DType dtype() const { return dtype_; }
  int64_t count() const { return count_; }
  int64_t size_bytes() const { return count_ * element_bytes(dtype_); }
  std::byte* data() { return storage_.data() + start_; }
  const std::byte* data() const { return storage_.data() + start_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }

  /// Returns element i, converted to fp32.
  float value(int64_t i) const {
    const std::byte* at = data() + i * element_bytes(dtype_);
    if (dtype_ == DType::kFloat32) {
      float x;
      std::memcpy(&x, at, sizeof x);
      return x;
    }
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return dtype_ == DType::kBFloat16 ? bf16_to_float(bits) : fp16_to_float(bits);
  }

  bool guards_intact() const {
    const auto intact = [](std::byte b) { return b == kGuard; };
    const auto begin = storage_.begin() + static_cast<std::ptrdiff_t>(start_);
    return std::all_of(storage_.begin(), begin, intact) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(size_bytes()), storage_.end(), intact);
  }

 private:
  static constexpr std::size_t kGuardBytes = 128;
  static constexpr std::byte kGuard{0xA5};

  DType dtype_;
  int64_t count_;
  std::vector<std::byte> storage_;
  std::size_t start_;
};

/// Kinds of values with which fill_values() fills an array.
enum class ValueKind {
  kOrdinary,  // both signs, many magnitudes; sums of them are inexact
  kSpecial,   // as kOrdinary, plus infinities, NaN, subnormals, both zeros and the largest numbers
};

inline uint32_t hash_bits(uint64_t x) {
  x = (x + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 29)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>(x >> 32);
}

/// Returns the bits of an fp32 number with magnitude from 2^-20 to 2^12.
inline uint32_t ordinary_bits(uint32_t random) {
  return (random & 0x807fffffu) | ((107u + (random >> 23) % 32u) << 23);
}

inline uint32_t special_bits(uint32_t random) {
  static constexpr uint32_t kSpecial[] = {0x00000000u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00001u, 0xffffffffu,
                                          0x7f800001u, 0x00000001u, 0x807fffffu, 0x00400000u, 0x7f7fffffu, 0xff7f8000u,
                                          0x33000000u, 0x387fe000u, 0x477fefffu, 0x477ff000u};
  return random % 7 == 0 ? kSpecial[(random >> 8) % 16] : ordinary_bits(random);
}

inline void fill_values(Elements& elements, ValueKind values, uint64_t seed) {
  for (int64_t i = 0; i < elements.count(); ++i) {
    const uint32_t random = hash_bits(seed * 1'000'003 + static_cast<uint64_t>(i));
    const uint32_t bits = values == ValueKind::kOrdinary ? ordinary_bits(random) : special_bits(random);
    const uint16_t narrow =
        elements.dtype() == DType::kFloat16 ? float_to_fp16(float_from_bits(bits)) : static_cast<uint16_t>(bits >> 16);
    std::byte* at = elements.data() + i * element_bytes(elements.dtype());
    if (elements.dtype() == DType::kFloat32)
      std::memcpy(at, &bits, sizeof bits);
    else
      std::memcpy(at, &narrow, sizeof narrow);
  }
}

inline bool same_bytes(const Elements& a, const Elements& b) {
  return a.size_bytes() == b.size_bytes() &&
         (a.size_bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size_bytes())) == 0);
}

/// Checks that two elements at the same index have equal bits or are both NaN. The payload of a computed NaN is
/// undefined, so it may differ.
inline void expect_same_values(const Elements& got, const Elements& expected) {
  ASSERT_EQ(got.count(), expected.count());
  for (int64_t i = 0; i < got.count(); ++i) {
    const float a = got.value(i), b = expected.value(i);
    const bool same = float_bits(a) == float_bits(b) || (a != a && b != b);
    ASSERT_TRUE(same) << "element " << i << " of " << got.count() << ": " << a << ", expected " << b;
  }
}

}  // namespace aliquot
