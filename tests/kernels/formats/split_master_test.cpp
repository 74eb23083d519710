#include "kernels/formats/split_master.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <thread>
#include <vector>

namespace aliquot {
namespace {

#if defined(ALIQUOT_SAMPLED) || !defined(NDEBUG)
constexpr uint64_t kStep = 257;  // samples the patterns, because all of them would take minutes
#else
constexpr uint64_t kStep = 1;
#endif
constexpr uint64_t kPatterns = uint64_t{1} << 32;

// Returns the number of bit patterns in [begin, end) for which merging the halves does not restore the master, or a
// half differs from its definition.
uint64_t wrong_count(uint64_t begin, uint64_t end) {
  uint64_t wrong = 0;
  for (uint64_t pattern = begin; pattern < end; pattern += kStep) {
    const auto bits = static_cast<uint32_t>(pattern);
    const float master = float_from_bits(bits);
    const uint16_t high = master_high(master);
    const int16_t low = master_low(master);
    const auto defined_high = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    const auto defined_low = static_cast<int16_t>(bits - (static_cast<uint32_t>(defined_high) << 16));
    wrong += (float_bits(merge_master(high, low)) != bits) + (high != defined_high) + (low != defined_low);
  }
  return wrong;
}

TEST(SplitMaster, MergeRestoresEveryBitPattern) {
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  const uint64_t patterns_per_thread = kPatterns / 4 / kStep * kStep;
  for (uint64_t part = 0; part < 4; ++part) {
    const uint64_t end = part == 3 ? kPatterns : (part + 1) * patterns_per_thread;
    threads.emplace_back(
        [&wrong, part, patterns_per_thread, end] { wrong += wrong_count(part * patterns_per_thread, end); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(SplitMaster, WorkingCopyIsRoundedToNearestExceptForTies) {
  for (uint64_t pattern = 0; pattern < kPatterns; pattern += 253) {
    const auto bits = static_cast<uint32_t>(pattern);
    if ((bits & 0x7f800000u) == 0x7f800000u) continue;
    const uint32_t nearest_even = float_to_bf16(float_from_bits(bits));
    // A tie is halfway between two bf16 values. If the smaller one is even, master_high() rounds the magnitude up, and
    // round-to-nearest-even rounds it down.
    const bool tie_upwards = (bits & 0x1ffffu) == 0x8000u;
    ASSERT_EQ(master_high(float_from_bits(bits)), nearest_even + (tie_upwards ? 1u : 0u)) << std::hex << bits;
  }
}

// Checks the results for infinity, NaN and values that round to infinity, as the table in split_master.h lists them.
TEST(SplitMaster, WorkingCopyBeyondTheFiniteNumbersFollowsTheTable) {
  EXPECT_EQ(master_high(float_from_bits(0x7f7f7fffu)), 0x7f7fu);
  EXPECT_EQ(master_high(float_from_bits(0x7f7f8000u)), 0x7f80u);
  EXPECT_EQ(master_high(std::numeric_limits<float>::max()), 0x7f80u);
  EXPECT_EQ(master_high(std::numeric_limits<float>::infinity()), 0x7f80u);
  EXPECT_EQ(master_high(-std::numeric_limits<float>::infinity()), 0xff80u);
  EXPECT_EQ(master_high(float_from_bits(0x7f800001u)), 0x7f80u);
  EXPECT_EQ(master_high(float_from_bits(0x7f808000u)), 0x7f81u);
  EXPECT_EQ(master_high(float_from_bits(0x7fc00000u)), 0x7fc0u);
  EXPECT_EQ(master_high(float_from_bits(0x7fffffffu)), 0x8000u);
  EXPECT_EQ(master_high(float_from_bits(0xffff8000u)), 0x0000u);
}

}  // namespace
}  // namespace aliquot
