// Compares the software conversions with the instructions of the processor, if it has them.
#include <cpuid.h>
#include <cstdint>
#include <gtest/gtest.h>
#include <immintrin.h>

#include "kernels/formats/float16.h"

namespace aliquot {
namespace {

bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx512_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx512vl") && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 32u) != 0;
}

__attribute__((target("f16c"))) uint16_t hardware_fp16(float x) {
  return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)));
}

__attribute__((target("f16c"))) float hardware_from_fp16(uint16_t x) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x)));
}

__attribute__((target("avx512bf16,avx512vl"))) uint16_t hardware_bf16(float x) {
  const __m128i narrow = (__m128i)_mm_cvtneps_pbh(_mm_set_ss(x));
  return static_cast<uint16_t>(_mm_cvtsi128_si32(narrow));
}

// The step between tested bit patterns. It is coprime to 2^32, so that ties, both signs and NaN all occur.
constexpr uint64_t kStep = 251;
constexpr uint64_t kPatterns = uint64_t{1} << 32;

TEST(Float16Hardware, Fp16RoundsLikeF16C) {
  if (!has_f16c()) GTEST_SKIP() << "this processor has no F16C";
  for (uint64_t pattern = 0; pattern < kPatterns; pattern += kStep) {
    const float x = float_from_bits(static_cast<uint32_t>(pattern));
    ASSERT_EQ(float_to_fp16(x), hardware_fp16(x)) << std::hex << pattern;
  }
}

TEST(Float16Hardware, Fp16WidensLikeF16C) {
  if (!has_f16c()) GTEST_SKIP() << "this processor has no F16C";
  for (uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const auto x = static_cast<uint16_t>(pattern);
    ASSERT_EQ(float_bits(fp16_to_float(x)), float_bits(hardware_from_fp16(x))) << std::hex << pattern;
  }
}

// The instruction treats subnormals as zero, so they are skipped.
TEST(Float16Hardware, Bf16RoundsLikeAvx512Bf16ExceptForSubnormals) {
  if (!has_avx512_bf16()) GTEST_SKIP() << "this processor has no AVX512_BF16";
  for (uint64_t pattern = 0; pattern < kPatterns; pattern += kStep) {
    const auto bits = static_cast<uint32_t>(pattern);
    if ((bits & 0x7f800000u) == 0) continue;
    const float x = float_from_bits(bits);
    ASSERT_EQ(float_to_bf16(x), hardware_bf16(x)) << std::hex << pattern;
  }
}

}  // namespace
}  // namespace aliquot
