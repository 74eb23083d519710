#pragma once
// Loops of the exact norm, written so that compilers vectorize them. Files that are compiled with AVX flags include
// this header. So it must not use inline functions of other headers: the linker may keep only the AVX copy of such a
// function.

#include <cstdint>

#include "kernels/elementwise/host_loops.h"

namespace aliquot {
namespace {

constexpr int kNormLanes = 16;

/// The bits of magnitudes have the order of the magnitudes, and those of a NaN are the largest.
double largest_magnitude(const float* block) {
  uint32_t lanes[kNormLanes] = {};
  for (int64_t i = 0; i < kBlockElements; i += kNormLanes) {
    for (int lane = 0; lane < kNormLanes; ++lane) {
      const uint32_t magnitude = __builtin_bit_cast(uint32_t, block[i + lane]) & 0x7fffffffu;
      lanes[lane] = lanes[lane] > magnitude ? lanes[lane] : magnitude;
    }
  }
  uint32_t largest = 0;
  for (const uint32_t lane : lanes) largest = largest > lane ? largest : lane;
  return static_cast<double>(__builtin_bit_cast(float, largest));
}

/// Returns the sum of of(square * factor), which is exact, so the order of additions does not matter.
template <class Of>
double sum_of_squares(const float* block, double factor, const Of& of) {
  double lanes[kNormLanes] = {};
  for (int64_t i = 0; i < kBlockElements; i += kNormLanes) {
    for (int lane = 0; lane < kNormLanes; ++lane) {
      const auto element = static_cast<double>(block[i + lane]);
      lanes[lane] += of(element * element * factor);
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// `kCast` is HostLoops::cast of the same instruction set.
template <void (*kCast)(void*, DType, const void*, DType, int64_t)>
struct BlockNormLoops {
  static void largest(double* values, const void* x, DType dtype, int64_t count) {
    for_blocks(x, dtype, count, [values](int64_t b, const float* block) { values[b] = largest_magnitude(block); });
  }

  static void fixed_squares(double* sums, const FixedSquares& a) {
    constexpr double kDigit = int64_t{1} << kFixedDigitBits;
    const double factor = a.scale * kDigit;
    const auto integer = [](double value) { return static_cast<double>(static_cast<int32_t>(value)); };
    const auto second = [integer](double value) { return integer((value - integer(value)) * kDigit); };
    for_blocks(a.x, a.dtype, a.count, [&](int64_t b, const float* block) {
      sums[b] = a.digit == 0 ? sum_of_squares(block, factor, integer) : sum_of_squares(block, factor, second);
    });
  }

 private:
  /// Calls body(b, elements) for each block b, as fp32 values. Missing elements of the last block are 0.
  template <class Body>
  static void for_blocks(const void* x, DType dtype, int64_t count, const Body& body) {
    float copy[kBlockElements];
    for (int64_t b = 0; b * kBlockElements < count; ++b) {
      const int64_t left = count - b * kBlockElements, size = left < kBlockElements ? left : kBlockElements;
      const void* at = static_cast<const char*>(x) + b * kBlockElements * (dtype == DType::kFloat32 ? 4 : 2);
      if (dtype == DType::kFloat32 && size == kBlockElements) {
        body(b, static_cast<const float*>(at));
        continue;
      }
      kCast(copy, DType::kFloat32, at, dtype, size);
      for (int64_t i = size; i < kBlockElements; ++i) copy[i] = 0;
      body(b, copy);
    }
  }
};

}  // namespace
}  // namespace aliquot
