#include "apps/data/loader.h"

#include <algorithm>
#include <string>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// The first part has the seed of the options, so its order is that of the same file alone.
std::vector<SequenceOrder> orders_of(const TokenSource& source, const LoaderOptions& options) {
  constexpr uint64_t kSeedStep = 0x9E3779B97F4A7C15u;
  std::vector<SequenceOrder> orders;
  for (const TokenPart& part : source.parts()) {
    const int64_t count = (part.count - 1) / options.sequence;
    if (count < 1)
      throw UsageError(source.describe_part(orders.size()) + " is too short for one sequence of " +
                       std::to_string(options.sequence) +
                       " tokens and its target: use more data or a smaller --sequence.");
    orders.emplace_back(count, options.shuffle, options.seed + orders.size() * kSeedStep);
  }
  return orders;
}

std::vector<double> weights_of(const std::vector<TokenPart>& parts) {
  std::vector<double> weights;
  for (const TokenPart& part : parts) weights.push_back(part.weight);
  return weights;
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
      parts_(source.parts()),
      mixture_(weights_of(parts_)),
      orders_(orders_of(source, options)),
      tokens_(static_cast<size_t>(options.micro_batch * options.sequence)),
      targets_(tokens_.size()),
      scratch_(static_cast<size_t>(options.sequence) + 1) {
  if (source.recorded_vocabulary() <= options.vocabulary) return;
  throw UsageError(source.describe() + " was written with a tokenizer of " +
                   std::to_string(source.recorded_vocabulary()) + " tokens, but the model's vocabulary has " +
                   std::to_string(options.vocabulary) +
                   " entries: use a larger --vocab, or data tokenized for this model.");
}

int64_t Loader::sequence_count() const {
  int64_t count = 0;
  for (const SequenceOrder& order : orders_) count += order.sequence_count();
  return count;
}

int64_t Loader::first_token_at(int64_t position) {
  const auto [part, index] = mixture_.at(position);
  return parts_[part].first + orders_[part].sequence_at(index) * options_.sequence;
}

void Loader::load(int64_t consumed, int64_t micro_batch, std::optional<int> rank) {
  const int64_t first = (micro_batch * options_.rank_count + rank.value_or(options_.rank)) * options_.micro_batch;
  for (int64_t b = 0; b < options_.micro_batch; ++b) {
    const int64_t begin = first_token_at(consumed + first + b);
    source_.read(begin, scratch_, options_.vocabulary);
    std::copy(scratch_.begin(), scratch_.end() - 1, tokens_.begin() + b * options_.sequence);
    source_.ignore_targets(begin + 1, std::span(scratch_).subspan(1));
    std::copy(scratch_.begin() + 1, scratch_.end(), targets_.begin() + b * options_.sequence);
  }
}

int64_t Loader::count_targets(int64_t consumed, int64_t count) {
  if (!source_.ignores_targets()) return count * options_.sequence;
  int64_t counted = 0;
  for (int64_t position = consumed; position < consumed + count; ++position)
    counted += source_.count_targets(first_token_at(position) + 1, options_.sequence);
  return counted;
}

}  // namespace aliquot
