#include "apps/train/train_text.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>

#include "apps/data/whole_file.h"
#include "apps/text/token_rules.h"
#include "apps/text/tokenizer_file.h"
#include "apps/text/unicode/utf8.h"
#include "checkpoint/weights/export_weights.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kLargestFileMib = 256;

std::string find_tokenizer_json(const TrainOptions& options, const TokenSource& data) {
  if (!options.tokenizer.empty()) return read_whole_file(options.tokenizer, kLargestFileMib);
  if (std::string json = data.tokenizer_json(); !json.empty()) return json;
  const auto found = options.init.empty() ? std::nullopt : find_tokenizer(options.init);
  return found ? read_whole_file(*found, kLargestFileMib) : "";
}

Generation sample_of(const TrainOptions& options, const Tokenizer& tokenizer) {
  if (find_invalid_utf8(options.sample_prompt)) throw UsageError("--sample-prompt is not valid UTF-8.");
  Generation sample{.prompt = {},
                    .tokens = options.sample_tokens,
                    .choice = {.temperature = options.sample_temperature, .seed = options.engine.seed}};
  Tokenizer::Encoder(tokenizer).encode(options.sample_prompt, sample.prompt);
  if (const auto end = end_of_text_token(tokenizer)) sample.stop.push_back(*tokenizer.find(*end));
  return sample;
}

}  // namespace

TrainText train_text(TrainOptions& options, const TokenSource& data) {
  TrainText text;
  if (options.sample_every == 0 && options.checkpoint_dir.empty()) return text;
  text.tokenizer_json = find_tokenizer_json(options, data);
  if (options.sample_every == 0) return text;
  if (text.tokenizer_json.empty())
    throw UsageError(
        "--sample-every: the tokenizer of --data is not known: give --tokenizer FILE, its tokenizer.json.");
  text.tokenizer = std::make_shared<const Tokenizer>(text.tokenizer_json,
                                                     options.tokenizer.empty() ? kTokenizerFile : options.tokenizer);
  const ModelShape shape = model_shape(options);
  if (text.tokenizer->vocabulary_size() > shape.vocabulary) {
    throw UsageError(
        fmt::format("--sample-every: the tokenizer has {} tokens, but the model's vocabulary has {}: use a "
                    "larger --vocab.",
                    text.tokenizer->vocabulary_size(), shape.vocabulary));
  }
  text.sample = sample_of(options, *text.tokenizer);
  const auto prompt = static_cast<int64_t>(text.sample->prompt.size());
  if (prompt >= shape.context) {
    throw UsageError(fmt::format("--sample-prompt has {} tokens, and the model's context has {}: use a shorter prompt.",
                                 prompt, shape.context));
  }
  options.decode_positions = std::min(prompt + options.sample_tokens, shape.context);
  return text;
}

std::string tokenizer_warning(const TokenSource& data, const std::string& weights) {
  const auto file = find_tokenizer(weights);
  if (!file) return "";
  try {
    const std::string of_data = data.tokenizer_json();
    if (of_data.empty()) return "";
    const std::string of_weights = read_whole_file(*file, kLargestFileMib);
    if (of_weights == of_data || token_rules(of_weights, file->string()) == token_rules(of_data, data.describe()))
      return "";
  } catch (const UsageError&) {  // one of them cannot be read, or is invalid; whoever uses it reports the error
    return "";
  }
  return fmt::format(
      "{} was encoded with another tokenizer than that of the weights, {}: encode the text with --tokenizer {}.",
      data.describe(), file->string(), file->string());
}

void save_tokenizer(const TrainText& text, const std::string& directory) {
  if (text.tokenizer_json.empty() || directory.empty()) return;
  const std::filesystem::path path = std::filesystem::path(directory) / kTokenizerFile;
  std::error_code ignored;  // if the file cannot be read, writing it reports the error
  if (std::filesystem::is_regular_file(path, ignored) && read_whole_file(path, kLargestFileMib) == text.tokenizer_json)
    return;
  write_file_atomically(directory, kTokenizerFile, text.tokenizer_json);
}

}  // namespace aliquot
