#pragma once
// Continues a sequence of tokens with a model.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "apps/inference/token_choice.h"
#include "apps/models/decoding.h"
#include "apps/train/train_context.h"

namespace aliquot {

/// What to generate, from which tokens.
struct Generation {
  std::vector<int32_t> prompt;  // at least one token
  int64_t tokens = 100;         // the largest number of generated tokens
  TokenChoice choice = {};
  std::vector<int32_t> stop = {};  // tokens that end the text
};

/// Generates tokens with the engine and the model of a rank, between steps. The engine's evaluation gathers each unit
/// before its use, so any sharding works, and a rank never needs all parameters at once. All ranks compute the same
/// sequence. Each rank of a tensor group caches the keys and values of its heads. Collective: every rank makes the same
/// calls from its own thread. The context must outlive it.
class Generator {
 public:
  /// Allocates the cache. The model must be made for decoding of sequences of `capacity` tokens.
  Generator(const TrainContext& context, int64_t capacity);

  /// Generates tokens until a stop token is chosen, the number of tokens is reached, or the sequence has `capacity`
  /// tokens. Calls take(token) for each token except a stop token. Returns whether the capacity ended the text. Throws
  /// UsageError if a token is outside the vocabulary or the prompt fills the capacity.
  bool generate(const Generation& what, const std::function<void(int32_t)>& take);

 private:
  int32_t next(std::span<const int32_t> tokens, const TokenChoice& choice, int64_t index);

  const TrainContext& context_;
  KeyValueCache cache_;
};

}  // namespace aliquot
