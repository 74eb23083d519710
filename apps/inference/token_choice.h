#pragma once
// Chooses the next token from logits.

#include <cstdint>
#include <span>

namespace aliquot {

struct TokenChoice {
  double temperature = 0.8;  // divides the logits; 0: the token with the largest logit
  int64_t top_k = 50;        // only the K tokens with the largest logits; 0: all
  /// Only the most probable tokens whose probabilities reach this sum, after --top-k. 1: all.
  double top_p = 1;
  uint64_t seed = 1;
};

/// Returns a random token. Of tokens with equal logits, --top-k and --top-p keep those with lower numbers first. The
/// result depends only on the arguments; `index` is the number of the token in its text. Throws FaultError if a logit
/// is NaN or if no logit is finite.
int32_t choose_token(std::span<const float> logits, const TokenChoice& choice, int64_t index);

}  // namespace aliquot
