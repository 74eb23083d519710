#pragma once
// Selects the sequences of each rank and micro-batch, and loads their tokens.

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/data/mixture.h"
#include "apps/data/token_source.h"

namespace aliquot {

/// A pseudo-random permutation of [0, count) that depends on seed and epoch. Each element is computed without the
/// others. A Feistel network permutes the values below a power of four that is at least count. The network is applied
/// again until the result is below count. count is at least 1.
class Permutation {
 public:
  Permutation(int64_t count, uint64_t seed, uint64_t epoch);

  /// The element at `index` of the permutation.
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 6;

  uint64_t encrypt(uint64_t value) const;

  uint64_t count_;
  int half_bits_ = 1;
  uint64_t half_mask_ = 1;
  uint64_t keys_[kRounds] = {};
};

/// The order in which a run reads the n sequences. Without shuffling, position i has sequence i mod n. With shuffling,
/// position i has the sequence at index i mod n of the permutation for the seed and epoch i / n. The order does not
/// depend on the number of ranks.
class SequenceOrder {
 public:
  SequenceOrder(int64_t sequence_count, bool shuffle, uint64_t seed);

  int64_t sequence_at(int64_t position);
  int64_t sequence_count() const { return sequence_count_; }

 private:
  int64_t sequence_count_;
  bool shuffle_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  std::optional<Permutation> permutation_;  // the permutation of epoch_
};

struct LoaderOptions {
  int64_t sequence = 0;     // tokens in a sequence
  int64_t micro_batch = 1;  // sequences in a micro-batch of one rank
  int64_t vocabulary = 0;
  bool shuffle = true;
  uint64_t seed = 1;
  int rank = 0, rank_count = 1;
};

/// Loads the micro-batches of one rank. With T tokens in a sequence, sequence s of a part of the source has the tokens
/// s x T to s x T + T - 1 of the part. The target of each token is the next token, or kIgnoredTarget if the source
/// ignores it. Tokens at the end of a part that do
/// not fill a sequence are not used. If the source has several parts, a Mixture of their weights assigns each position
/// of the run to a part. Each part has its own order and epochs.
/// With B sequences in a micro-batch, sequence b of micro-batch a of rank r is at position (a x ranks + r) x B + b of
/// the global batch. The source must outlive the loader.
class Loader {
 public:
  /// Throws UsageError if a part has fewer tokens than one sequence and the target of its last token, or if the source
  /// records a vocabulary that is larger than that of the options.
  Loader(const TokenSource& source, const LoaderOptions& options);

  /// The number of sequences of all parts.
  int64_t sequence_count() const;

  /// Loads this rank's part of micro-batch `micro_batch`. `consumed` is the number of sequences that all ranks have
  /// used in earlier steps. tokens() and targets() are valid until the next call. Throws UsageError for a token
  /// outside the vocabulary. `rank`: loads the part of that rank, by default of LoaderOptions::rank.
  void load(int64_t consumed, int64_t micro_batch, std::optional<int> rank = {});
  /// The number of targets that are not kIgnoredTarget in the `count` sequences of all ranks after the first `consumed`
  /// sequences.
  int64_t count_targets(int64_t consumed, int64_t count);
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int32_t>& targets() const { return targets_; }

 private:
  /// The first token of the sequence at a position of the run.
  int64_t first_token_at(int64_t position);

  const TokenSource& source_;
  LoaderOptions options_;
  std::vector<TokenPart> parts_;
  Mixture mixture_;
  std::vector<SequenceOrder> orders_;  // of each part
  std::vector<int32_t> tokens_, targets_, scratch_;
};

}  // namespace aliquot
