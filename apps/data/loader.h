#pragma once
// Which sequences a rank trains on, in which order, and their tokens.

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/data/token_source.h"

namespace aliquot {

/// A permutation of [0, count), different for every key, any element computed on its own: a Feistel network on the next
/// even power of two, walked until it lands inside. count is at least 1.
class Permutation {
 public:
  Permutation(int64_t count, uint64_t seed, uint64_t epoch);

  /// Where place `index` of the order points.
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 6;

  uint64_t encrypt(uint64_t value) const;

  uint64_t count_;
  int half_bits_ = 1;
  uint64_t half_mask_ = 1;
  uint64_t keys_[kRounds] = {};
};

/// The order of sequences over a run: position i takes sequence i mod n, or its place in a permutation keyed by
/// (seed, epoch i / n). It knows nothing of ranks, so their number changes nothing.
class SequenceOrder {
 public:
  SequenceOrder(int64_t sequence_count, bool shuffle, uint64_t seed);

  int64_t sequence_at(int64_t position);

 private:
  int64_t sequence_count_;
  bool shuffle_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  std::optional<Permutation> permutation_;  // of epoch_
};

struct LoaderOptions {
  int64_t sequence = 0;     // tokens in one
  int64_t micro_batch = 1;  // sequences a rank takes at once
  int64_t vocabulary = 0;
  bool shuffle = true;
  uint64_t seed = 1;
  int rank = 0, rank_count = 1;
};

/// Sequence s is tokens s T to s T + T, its targets one further; no two overlap and what is left over is dropped. Place b
/// of micro-batch a of rank r is sequence (a x ranks + r) x B + b of the batch. One a rank; the source must outlive it.
class Loader {
 public:
  /// Throws UsageError when the source holds less than one sequence.
  Loader(const TokenSource& source, const LoaderOptions& options);

  int64_t sequence_count() const { return sequence_count_; }  // of an epoch

  /// This rank's share of micro-batch `micro_batch` of the batch that begins at position `consumed`, the number of
  /// sequences that all ranks have taken before it. Valid until the next call. Throws UsageError for a bad token.
  void load(int64_t consumed, int64_t micro_batch);
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int32_t>& targets() const { return targets_; }

 private:
  const TokenSource& source_;
  LoaderOptions options_;
  int64_t sequence_count_;
  SequenceOrder order_;
  std::vector<int32_t> tokens_, targets_, scratch_;
};

}  // namespace aliquot
