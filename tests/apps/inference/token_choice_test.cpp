// Tests the choice of the next token.
#include "apps/inference/token_choice.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <vector>

#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

const std::vector<float> kLogits{1.0f, 3.0f, -2.0f, 3.0f, 2.0f};

/// How often each token is chosen in `count` choices.
std::map<int32_t, int> counts(const TokenChoice& choice, int count = 20000) {
  std::map<int32_t, int> found;
  for (int64_t index = 0; index < count; ++index) ++found[choose_token(kLogits, choice, index)];
  return found;
}

TEST(TokenChoice, TemperatureZeroIsTheFirstLargest) {
  for (const uint64_t seed : {1, 2, 3}) EXPECT_EQ(choose_token(kLogits, {.temperature = 0, .seed = seed}, 4), 1);
  EXPECT_EQ(choose_token(kLogits, {.top_k = 1}, 4), 1);
  EXPECT_EQ(choose_token(kLogits, {.top_k = 0, .top_p = 0.1}, 4), 1);
}

TEST(TokenChoice, FrequenciesAreProbabilities) {
  for (const double temperature : {0.7, 1.0, 2.5}) {
    double sum = 0;
    for (const float logit : kLogits) sum += std::exp(static_cast<double>(logit) / temperature);
    // top_p just below 1 sorts the tokens, which changes their order and not their probabilities.
    for (const double top_p : {1.0, 1 - 1e-12}) {
      const auto found = counts({.temperature = temperature, .top_k = 0, .top_p = top_p});
      for (int32_t token = 0; token < 5; ++token) {
        const double expected = std::exp(static_cast<double>(kLogits[static_cast<size_t>(token)]) / temperature) / sum;
        const auto times = found.find(token);
        const double share = times == found.end() ? 0 : times->second / 20000.0;
        // Four standard deviations.
        EXPECT_NEAR(share, expected, 4 * std::sqrt(expected * (1 - expected) / 20000) + 1e-9) << token << temperature;
      }
    }
  }
}

TEST(TokenChoice, CutsTheTokens) {
  const auto tokens_of = [](const TokenChoice& choice) {
    std::vector<int32_t> tokens;
    for (const auto& [token, times] : counts(choice, 2000)) tokens.push_back(token);
    return tokens;
  };
  EXPECT_EQ(tokens_of({.temperature = 1, .top_k = 2}), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens_of({.temperature = 1, .top_k = 3}), (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(tokens_of({.temperature = 5, .top_k = 0}), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  // The probabilities are 0.40, 0.40, 0.15, 0.05 and 0.003.
  EXPECT_EQ(tokens_of({.temperature = 1, .top_k = 0, .top_p = 0.5}), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens_of({.temperature = 1, .top_k = 0, .top_p = 0.9}), (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(tokens_of({.temperature = 1, .top_k = 3, .top_p = 0.3}), (std::vector<int32_t>{1}));
}

TEST(TokenChoice, DependsOnSeedAndIndex) {
  const auto text = [](uint64_t seed, int64_t first) {
    std::vector<int32_t> tokens;
    for (int64_t index = first; index < first + 30; ++index)
      tokens.push_back(choose_token(kLogits, {.temperature = 2, .top_k = 0, .seed = seed}, index));
    return tokens;
  };
  EXPECT_EQ(text(1, 0), text(1, 0));
  EXPECT_NE(text(1, 0), text(2, 0));
  EXPECT_NE(text(1, 0), text(uint64_t{1} | uint64_t{1} << 40, 0));
  EXPECT_NE(text(1, 0), text(1, 1));
}

TEST(TokenChoice, RefusesLogitsThatAreNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto choose = [](std::vector<float> logits) { return choose_token(logits, {}, 0); };
  EXPECT_THROW(choose({1, std::nanf(""), 2}), FaultError);
  EXPECT_THROW(choose({1, kInfinity}), FaultError);
  EXPECT_THROW(choose({-kInfinity, -kInfinity}), FaultError);
  EXPECT_EQ(choose({-kInfinity, 1}), 1);
}

}  // namespace
}  // namespace aliquot::test
