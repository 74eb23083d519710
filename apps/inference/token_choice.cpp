#include "apps/inference/token_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/formats/philox.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Returns a number in [0, 1), a multiple of 2^-53.
double uniform_number(uint64_t seed, int64_t index) {
  constexpr uint32_t kPurpose = 0x746f6b65;  // other random numbers have another value in this word of the counter
  const auto position = static_cast<uint64_t>(index);
  const RandomWords words =
      philox4x32_10({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, kPurpose}},
                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t bits = uint64_t{words.word[0]} << 32 | words.word[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void check_logits(std::span<const float> logits) {
  const bool has_nan = std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); });
  if (!has_nan && std::isfinite(*std::ranges::max_element(logits))) return;
  throw FaultError("the logits of the model are not finite: the weights are damaged, or training has diverged");
}

/// Returns the tokens that can be chosen. They are sorted by descending logits if an option depends on the order.
std::vector<int32_t> candidates(std::span<const float> logits, const TokenChoice& choice) {
  std::vector<int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto is_before = [&](int32_t a, int32_t b) {
    const float of_a = logits[static_cast<size_t>(a)], of_b = logits[static_cast<size_t>(b)];
    return of_a > of_b || (of_a == of_b && a < b);
  };
  const bool cuts = choice.top_k > 0 && choice.top_k < static_cast<int64_t>(tokens.size());
  if (cuts) {
    std::ranges::partial_sort(tokens, tokens.begin() + choice.top_k, is_before);
    tokens.resize(static_cast<size_t>(choice.top_k));
  } else if (choice.top_p < 1) {
    std::ranges::sort(tokens, is_before);
  }
  return tokens;
}

}  // namespace

int32_t choose_token(std::span<const float> logits, const TokenChoice& choice, int64_t index) {
  check_logits(logits);
  const auto largest = std::ranges::max_element(logits);
  if (choice.temperature == 0) return static_cast<int32_t>(largest - logits.begin());
  const std::vector<int32_t> tokens = candidates(logits, choice);
  std::vector<double> sums;  // of the probabilities up to each token, times a constant
  double sum = 0;
  for (const int32_t token : tokens) {
    const double below = static_cast<double>(logits[static_cast<size_t>(token)]) - static_cast<double>(*largest);
    sums.push_back(sum += std::exp(below / choice.temperature));
  }
  if (choice.top_p < 1) {
    const auto last = std::ranges::lower_bound(sums, choice.top_p * sum);  // exists, because top_p is below 1
    sums.erase(last + 1, sums.end());
    sum = sums.back();
  }
  const auto chosen = std::ranges::upper_bound(sums, uniform_number(choice.seed, index) * sum);
  return tokens[static_cast<size_t>(std::min(chosen, sums.end() - 1) - sums.begin())];
}

}  // namespace aliquot
