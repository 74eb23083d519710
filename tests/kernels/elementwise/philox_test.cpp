#include "kernels/formats/philox.h"

#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <set>

#include "kernels/formats/float16.h"

namespace aliquot {
namespace {

void expect_words(const RandomWords& got, const RandomWords& expected) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], expected.word[i]) << i;
}

// Known-answer vectors published with Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, MatchesThePublishedVectors) {
  expect_words(philox4x32_10({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_words(philox4x32_10({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff),
               {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_words(philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Philox, EveryFieldOfTheKeyChangesTheWords) {
  const RandomKey key{.seed = 1, .step = 2, .parameter = 3, .use = RandomUse::kInitialValue};
  const std::set<uint32_t> words{
      random_words(key, 7).word[0],
      random_words(key, 8).word[0],
      random_words(key, int64_t{7} | (int64_t{1} << 33)).word[0],
      random_words({.seed = 2, .step = 2, .parameter = 3}, 7).word[0],
      random_words({.seed = 1 | (uint64_t{1} << 40), .step = 2, .parameter = 3}, 7).word[0],
      random_words({.seed = 1, .step = 3, .parameter = 3}, 7).word[0],
      random_words({.seed = 1, .step = 2, .parameter = 4}, 7).word[0],
      random_words({.seed = 1, .step = 2, .parameter = 3, .use = RandomUse::kDropout}, 7).word[0]};
  EXPECT_EQ(words.size(), 8u);
}

TEST(Philox, FourConsecutiveElementsUseTheFourWordsOfOneDraw) {
  const RandomKey key{.seed = 5};
  for (int64_t element = 0; element < 64; ++element) {
    const uint32_t word = random_words(key, element / 4).word[element % 4];
    EXPECT_EQ(random_uniform(key, element), uniform_from_word(word));
    EXPECT_EQ(random_normal(key, element), normal_from_word(word));
  }
}

TEST(Philox, UniformIsAtLeastZeroAndBelowOne) {
  EXPECT_EQ(uniform_from_word(0), 0.0f);
  EXPECT_EQ(uniform_from_word(0xffffffffu), 1.0f - 0x1p-24f);
}

TEST(Philox, PortableLogApproximatesLog) {
  for (double x = 1e-10; x < 1e10; x *= 1.0009)
    ASSERT_NEAR(portable_log(x), std::log(x), 2e-11 * (1 + std::fabs(std::log(x))));
}

// normal_from_word() inverts the normal distribution function. That function, applied to the result, must return the
// probability that the word represents.
TEST(Philox, NormalInvertsTheDistributionFunction) {
  for (uint64_t word = 0; word < 0x80000000u; word += word / 64 + 1) {
    const double point = (static_cast<double>(word) + 0.5) * 0x1p-32;
    const double z = static_cast<double>(normal_from_word(static_cast<uint32_t>(word)));
    const double back = 0.5 * std::erfc(-z * std::sqrt(0.5));
    ASSERT_NEAR(back / point, 1.0, 1e-5) << word;
    ASSERT_EQ(normal_from_word(~static_cast<uint32_t>(word)), -static_cast<float>(z));
  }
}

TEST(Philox, NormalIsMonotone) {
  float last = normal_from_word(0);
  EXPECT_GT(last, -6.4f);
  for (uint64_t word = 0; word < 0x100000000u; word += 4093) {
    const float z = normal_from_word(static_cast<uint32_t>(word));
    ASSERT_GE(z, last) << word;
    last = z;
  }
}

TEST(Philox, NormalHasTheMomentsOfItsDistribution) {
  const RandomKey key{.seed = 42, .step = 0, .parameter = 17};
  constexpr int64_t kCount = 1 << 20;
  double sum = 0, squares = 0, fourths = 0;
  for (int64_t element = 0; element < kCount; ++element) {
    const auto z = static_cast<double>(random_normal(key, element));
    sum += z;
    squares += z * z;
    fourths += z * z * z * z;
  }
  // Each tolerance is five standard errors.
  EXPECT_NEAR(sum / kCount, 0.0, 5 * 0.00098);
  EXPECT_NEAR(squares / kCount, 1.0, 5 * 0.00139);
  EXPECT_NEAR(fourths / kCount, 3.0, 5 * 0.0096);
}

// Every machine, and the GPU, must draw exactly these bits. Otherwise a run that resumes on another machine would
// diverge.
TEST(Philox, NormalsHaveTheExpectedBits) {
  const RandomKey key{.seed = 0x0123456789abcdefu, .step = 7, .parameter = 11};
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (int64_t element = 0; element < 100'000; ++element) {
    hash = (hash ^ float_bits(random_normal(key, element))) * 0x100000001b3u;
  }
  EXPECT_EQ(hash, 9408272224638512930u);
}

}  // namespace
}  // namespace aliquot
