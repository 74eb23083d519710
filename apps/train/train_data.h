#pragma once
// The tokens of one rank's run.

#include <cstdint>
#include <optional>

#include "apps/data/loader.h"
#include "apps/data/token_source.h"
#include "apps/models/model.h"
#include "apps/options/train_options.h"
#include "sharding/world.h"

namespace aliquot {

class TrainContext;

/// Reads this rank's batches of the training and of the validation data. Used by the rank's own thread. Both sources outlive it.
class TrainData {
 public:
  /// `evaluated`: the validation data; null: there is none. Throws UsageError where a source holds less than one sequence.
  TrainData(const World& world, const TrainOptions& options, const TokenSource& trained, const TokenSource* evaluated);

  /// Checks all tokens of stored data against the vocabulary. Each node checks its own copy once: its ranks take equal
  /// parts. Collective. Where a rank fails, it throws its own error, and the others UsageError with the same text.
  void check(const TrainContext& context) const;

  int64_t token_count() const { return train_source_.token_count(); }
  /// Micro-batch `micro_batch` of the step that begins after `consumed` sequences. Valid until the next call.
  TokenBatch batch(int64_t consumed, int64_t micro_batch);
  /// Validation batch `index`, in the order of the data. Valid until the next call. Requires validation data.
  TokenBatch eval_batch(int64_t index);

 private:
  const TokenSource& train_source_;
  const TokenSource* eval_source_;  // may be null
  Loader loader_;
  std::optional<Loader> eval_loader_;
};

}  // namespace aliquot
