#pragma once
// The tokenizer of a run of `aliquot train`, and the text that the run samples.

#include <memory>
#include <optional>
#include <string>

#include "apps/data/token_source.h"
#include "apps/inference/generator.h"
#include "apps/options/train_options.h"
#include "apps/text/tokenizer.h"

namespace aliquot {

struct TrainText {
  std::string tokenizer_json;                  // empty: the tokenizer of the data is not known
  std::shared_ptr<const Tokenizer> tokenizer;  // null without --sample-every
  std::optional<Generation> sample;            // empty without --sample-every
};

/// Finds the tokenizer: that of --tokenizer, else the one that `data` contains, else the one that belongs to --init.
/// With --sample-every, also encodes --sample-prompt and sets options.decode_positions. Throws UsageError if the
/// tokenizer is missing or invalid, or if the prompt does not fit the model's context.
TrainText train_text(TrainOptions& options, const TokenSource& data);

/// Returns a warning if `data` was encoded with another tokenizer than the one that belongs to the weights at
/// `weights`. Tokenizers with equal token_rules() are the same. Returns "" if one of them is unknown or unreadable.
std::string tokenizer_warning(const TokenSource& data, const std::string& weights);

/// Copies the tokenizer to --checkpoint-dir, where `aliquot sample` finds it. Does nothing if the directory has the
/// same file, or if the tokenizer is not known. Throws FaultError if the file cannot be written.
void save_tokenizer(const TrainText& text, const std::string& directory);

}  // namespace aliquot
