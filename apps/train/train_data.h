#pragma once
// The training and validation data of one rank.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "apps/data/loader.h"
#include "apps/data/token_source.h"
#include "apps/models/model.h"
#include "apps/options/train_options.h"
#include "sharding/state.h"
#include "sharding/world.h"

namespace aliquot {

class TrainContext;

/// Which sequences this rank loads. Ranks that differ only in their pipeline or tensor coordinate load the same.
/// `options` must be resolved.
LoaderOptions loader_options(const World& world, const TrainOptions& options);

/// Reads this rank's batches of the training and validation data. Used by the rank's own thread. Both sources must
/// outlive it.
class TrainData {
 public:
  /// `evaluated` is the validation data or null. Throws UsageError if a source holds less than one sequence.
  TrainData(const World& world, const TrainOptions& options, const TokenSource& trained, const TokenSource* evaluated);

  /// Checks that all tokens of the data files are in the vocabulary, and that the files of all ranks have the same
  /// numbers of tokens and the same weights. The ranks of a node each check an equal part of the tokens. Collective. If
  /// a rank fails, it throws its own error, and the other ranks throw UsageError with the same text.
  void check(const TrainContext& context) const;

  /// The number of training tokens, in all files.
  int64_t token_count() const { return train_source_.token_count(); }
  /// The number of training tokens, and for several files the number of tokens and the weight of each, as scalars of a
  /// checkpoint.
  std::map<std::string, Scalar> scalars() const;
  /// Micro-batch `micro_batch` of a data coordinate, in the step that begins after `consumed` sequences. Valid until
  /// the next call.
  TokenBatch batch(int64_t consumed, int64_t micro_batch, int data_coordinate);
  /// The number of targets whose loss counts in the `count` sequences of all ranks after the first `consumed`.
  int64_t count_targets(int64_t consumed, int64_t count) { return loader_.count_targets(consumed, count); }
  /// The same for the first `count` sequences of the validation data.
  int64_t count_eval_targets(int64_t count) { return eval_loader_->count_targets(0, count); }
  /// Validation batch `index`, in the order of the file. Valid until the next call. Requires validation data.
  TokenBatch eval_batch(int64_t index);

 private:
  const TokenSource& train_source_;
  const TokenSource* eval_source_;  // may be null
  Loader loader_;
  std::optional<Loader> eval_loader_;
};

}  // namespace aliquot
