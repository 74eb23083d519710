#include "apps/data/loader.h"

#include <algorithm>
#include <string>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

int64_t count_sequences(const TokenSource& source, int64_t sequence) {
  const int64_t count = (source.token_count() - 1) / sequence;
  if (count >= 1) return count;
  throw UsageError(source.describe() + " is too short for one sequence of " + std::to_string(sequence) +
                   " tokens and its target: use more data or a smaller --sequence.");
}

}  // namespace

SequenceOrder::SequenceOrder(int64_t sequence_count, bool shuffle, uint64_t seed)
    : sequence_count_(sequence_count), shuffle_(shuffle), seed_(seed) {}

int64_t SequenceOrder::sequence_at(int64_t position) {
  const int64_t epoch = position / sequence_count_, place = position % sequence_count_;
  if (!shuffle_) return place;
  if (epoch != epoch_) {
    permutation_.emplace(sequence_count_, seed_, static_cast<uint64_t>(epoch));
    epoch_ = epoch;
  }
  return (*permutation_)(place);
}

Loader::Loader(const TokenSource& source, const LoaderOptions& options)
    : source_(source),
      options_(options),
      sequence_count_(count_sequences(source, options.sequence)),
      order_(sequence_count_, options.shuffle, options.seed),
      tokens_(static_cast<size_t>(options.micro_batch * options.sequence)),
      targets_(tokens_.size()),
      scratch_(static_cast<size_t>(options.sequence) + 1) {
  if (source.recorded_vocabulary() <= options.vocabulary) return;
  throw UsageError(source.describe() + " was written with a tokenizer of " +
                   std::to_string(source.recorded_vocabulary()) + " tokens, but the model's vocabulary has " +
                   std::to_string(options.vocabulary) +
                   " entries: use a larger --vocab, or data tokenized for this model.");
}

void Loader::load(int64_t consumed, int64_t micro_batch) {
  const int64_t first = (micro_batch * options_.rank_count + options_.rank) * options_.micro_batch;
  for (int64_t b = 0; b < options_.micro_batch; ++b) {
    const int64_t sequence = order_.sequence_at(consumed + first + b);
    source_.read(sequence * options_.sequence, scratch_, options_.vocabulary);
    std::copy(scratch_.begin(), scratch_.end() - 1, tokens_.begin() + b * options_.sequence);
    std::copy(scratch_.begin() + 1, scratch_.end(), targets_.begin() + b * options_.sequence);
  }
}

}  // namespace aliquot
