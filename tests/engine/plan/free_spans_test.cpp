// Compares FreeSpans with a reference that has one flag per byte, and ByteHolders with an array of holders.

#include "engine/plan/free_spans.h"

#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <random>
#include <utility>
#include <vector>

#include "engine/plan/byte_holders.h"

namespace aliquot {
namespace {

/// The reference for FreeSpans: first-fit allocation with one flag per byte.
class PlainBytes {
 public:
  int64_t allocate(int64_t size) {
    const auto found = std::search_n(taken_.begin(), taken_.end(), size, false);
    const auto begin = found - taken_.begin();
    if (begin + size > std::ssize(taken_)) taken_.resize(static_cast<std::size_t>(begin + size), false);
    std::fill_n(taken_.begin() + begin, size, true);
    return begin;
  }
  void release(int64_t begin, int64_t end) { std::fill(taken_.begin() + begin, taken_.begin() + end, false); }

 private:
  std::vector<bool> taken_ = std::vector<bool>(200'000);
};

/// FreeSpans stores its free spans in blocks. The test frees enough spans to fill several blocks, so that FreeSpans
/// splits and removes blocks.
TEST(FreeSpans, AllocatesAtTheLowestOffset) {
  constexpr int64_t kBase = 4096;
  std::mt19937 random(7);
  FreeSpans spans(kBase);
  PlainBytes plain;
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 4000; ++i) {
      const auto size = static_cast<int64_t>(1 + random() % 32);
      const int64_t offset = spans.allocate(size);
      ASSERT_EQ(offset - kBase, plain.allocate(size)) << "round " << round << ", " << i;
      taken.emplace_back(offset, offset + size);
    }
    std::ranges::shuffle(taken, random);
    const std::size_t left = round == 5 ? 0 : 2000;  // the last round releases everything
    for (; taken.size() > left; taken.pop_back()) {
      spans.release(taken.back().first, taken.back().second);
      plain.release(taken.back().first - kBase, taken.back().second - kBase);
    }
  }
  EXPECT_EQ(spans.allocate(1'000'000'000), kBase) << "released spans should merge into one";
}

TEST(FreeSpans, AllocatesZeroBytes) {
  FreeSpans spans(64);
  EXPECT_EQ(spans.allocate(0), 64);
  EXPECT_EQ(spans.allocate(8), 64);
  EXPECT_EQ(spans.allocate(0), 72);
}

TEST(ByteHolders, MatchAnArrayOfHolders) {
  constexpr int32_t kNone = -1;
  constexpr int kBytes = 64;
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    ByteHolders holders;
    std::array<int32_t, kBytes> plain;
    plain.fill(kNone);
    for (int32_t holder = 0; holder < 60; ++holder) {
      const auto begin = static_cast<int>(random() % kBytes);
      const int end = begin + 1 + static_cast<int>(random() % static_cast<unsigned>(kBytes - begin));
      std::vector<int32_t> wanted, found;
      for (int at = begin; at < end; ++at) {
        if (plain[at] != kNone && (wanted.empty() || wanted.back() != plain[at])) wanted.push_back(plain[at]);
        plain[at] = holder;
      }
      holders.assign(begin, end, holder, [&](int32_t earlier) {
        if (found.empty() || found.back() != earlier) found.push_back(earlier);
      });
      ASSERT_EQ(found, wanted) << "round " << round << ", bytes " << begin << " to " << end;
    }
  }
}

}  // namespace
}  // namespace aliquot
