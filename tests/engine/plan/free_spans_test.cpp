// Free spans beside a plain list of bytes that are free or not.

#include "engine/plan/free_spans.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <utility>
#include <vector>

namespace aliquot {
namespace {

/// A flag a byte, looked through from the front.
class PlainBytes {
 public:
  int64_t take(int64_t size) {
    const auto found = std::search_n(taken_.begin(), taken_.end(), size, false);
    const auto begin = found - taken_.begin();
    if (begin + size > std::ssize(taken_)) taken_.resize(static_cast<std::size_t>(begin + size), false);
    std::fill_n(taken_.begin() + begin, size, true);
    return begin;
  }
  void give_back(int64_t begin, int64_t end) { std::fill(taken_.begin() + begin, taken_.begin() + end, false); }

 private:
  std::vector<bool> taken_ = std::vector<bool>(200'000);
};

/// So many spans at a time that there are several blocks of them, which grow, are halved and dropped.
TEST(FreeSpans, AreTakenAtTheLowestOffset) {
  constexpr int64_t kBase = 4096;
  std::mt19937 random(7);
  FreeSpans spans(kBase);
  PlainBytes plain;
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 4000; ++i) {
      const auto size = static_cast<int64_t>(1 + random() % 32);
      const int64_t offset = spans.take(size);
      ASSERT_EQ(offset - kBase, plain.take(size)) << "round " << round << ", " << i;
      taken.emplace_back(offset, offset + size);
    }
    std::ranges::shuffle(taken, random);
    const std::size_t left = round == 5 ? 0 : 2000;  // the last round gives all back
    for (; taken.size() > left; taken.pop_back()) {
      spans.give_back(taken.back().first, taken.back().second);
      plain.give_back(taken.back().first - kBase, taken.back().second - kBase);
    }
  }
  EXPECT_EQ(spans.take(1'000'000'000), kBase) << "what was given back lies together again";
}

TEST(FreeSpans, NothingTakesNothing) {
  FreeSpans spans(64);
  EXPECT_EQ(spans.take(0), 64);
  EXPECT_EQ(spans.take(8), 64);
  EXPECT_EQ(spans.take(0), 72);
}

}  // namespace
}  // namespace aliquot
