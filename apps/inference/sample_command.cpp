// aliquot sample: continues a text with a model.
#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/inference/generator.h"
#include "apps/inference/inference_options.h"
#include "apps/inference/loaded_model.h"
#include "apps/inference/sample_options.h"
#include "apps/text/token_decoder.h"
#include "apps/text/tokenizer_file.h"
#include "apps/text/unicode/utf8.h"
#include "apps/train/launch.h"
#include "kernels/system/error.h"
#include "sharding/launcher.h"

namespace aliquot {
namespace {

/// The number of tokens that one pass computes at most. More need more memory, and do not make a long prompt faster. A
/// tensor group communicates as many rows for each token.
constexpr int64_t kRowsOfPass = 128, kRowsOfTensorGroup = 16;

std::unique_ptr<Tokenizer> open_tokenizer(const SampleOptions& options) {
  if (!options.tokenizer.empty()) return Tokenizer::read(options.tokenizer);
  for (const std::string& weights : {options.path(), options.run.init}) {
    if (const auto found = find_tokenizer(weights)) return Tokenizer::read(*found);
  }
  throw UsageError(fmt::format("{} has no {}: give --tokenizer FILE, the {} with which the training data was encoded.",
                               options.given(), kTokenizerFile, kTokenizerFile));
}

int32_t named_token(const Tokenizer& tokenizer, const char* option, const std::string& name) {
  const auto token = tokenizer.find(name);
  if (!token) throw UsageError(fmt::format("{} {}: the tokenizer has no such token.", option, name));
  return *token;
}

std::vector<int32_t> prompt_tokens(const SampleOptions& options, const std::string& prompt, const Tokenizer& tokenizer,
                                   const std::vector<int32_t>& stop) {
  if (find_invalid_utf8(prompt)) throw UsageError("--prompt is not valid UTF-8.");
  std::vector<int32_t> tokens;
  if (options.document_start != "auto" && options.document_start != "none")
    tokens.push_back(named_token(tokenizer, "--document-start", options.document_start));
  else if (options.document_start == "auto" && !options.init.empty())
    tokens = tokens_before_text(tokenizer);
  Tokenizer::Encoder(tokenizer).encode(prompt, tokens);
  // In training, the token that ends a document is before the next one.
  if (tokens.empty() && !stop.empty()) tokens.push_back(stop.front());
  if (tokens.empty()) throw UsageError("--prompt is missing: the tokenizer has no token that could begin a text.");
  return tokens;
}

void refuse_large_vocabulary(const Tokenizer& tokenizer, const ModelShape& shape) {
  if (tokenizer.vocabulary_size() <= shape.vocabulary) return;
  throw UsageError(fmt::format("{} has {} tokens, but the model's vocabulary has {}: use the tokenizer of the model.",
                               tokenizer.file(), tokenizer.vocabulary_size(), shape.vocabulary));
}

void refuse_unknown_tokens(const std::vector<int32_t>& prompt, const ModelShape& shape) {
  for (const int32_t token : prompt) {
    if (token >= shape.vocabulary)
      throw UsageError(fmt::format("--prompt-tokens: token {} is not in the model's vocabulary of {} tokens.", token,
                                   shape.vocabulary));
  }
}

/// What to generate, and how to print it.
struct SampleText {
  std::vector<std::vector<int32_t>> prompts;
  Generation what;                       // for each of the prompts
  std::unique_ptr<Tokenizer> tokenizer;  // null: prints tokens as numbers

  int64_t longest_prompt() const {
    size_t longest = 0;
    for (const std::vector<int32_t>& prompt : prompts) longest = std::max(longest, prompt.size());
    return static_cast<int64_t>(longest);
  }
};

SampleText sample_text(const SampleOptions& options, const ModelShape& shape) {
  SampleText text{.prompts = options.prompt_tokens,
                  .what = {.prompt = {}, .tokens = options.tokens, .choice = options.choice},
                  .tokenizer = nullptr};
  if (text.prompts.empty()) {
    text.tokenizer = open_tokenizer(options);
    const Tokenizer& tokenizer = *text.tokenizer;
    refuse_large_vocabulary(tokenizer, shape);
    if (options.stop == "auto")
      text.what.stop = end_tokens(options.run.init, tokenizer);
    else if (options.stop != "none")
      text.what.stop = {named_token(tokenizer, "--stop", options.stop)};
    for (const std::string& prompt : options.prompts)
      text.prompts.push_back(prompt_tokens(options, prompt, tokenizer, text.what.stop));
  }
  for (const std::vector<int32_t>& prompt : options.prompt_tokens) refuse_unknown_tokens(prompt, shape);
  if (const int64_t count = text.longest_prompt(); count >= shape.context) {
    throw UsageError(fmt::format("the prompt has {} tokens, and the model's context has {}: use a shorter prompt.",
                                 count, shape.context));
  }
  return text;
}

/// A model can generate control characters. They are removed from the output if it is a terminal.
void print(const std::string& text) {
  static const bool is_seen = is_on_terminal(stdout);
  if (text.empty()) return;
  write_stream(stdout, is_seen ? without_controls(text) : text);
  std::fflush(stdout);
}

/// Converts tokens to the text that is printed for them.
class Printer {
 public:
  explicit Printer(const Tokenizer* tokenizer) {
    if (tokenizer != nullptr) decoder_.emplace(*tokenizer);
  }
  std::string text_of(int32_t token) {
    if (decoder_) return decoder_->append(token);
    const std::string blank = is_first_ ? "" : " ";
    is_first_ = false;
    return blank + std::to_string(token);
  }
  std::string finish() { return (decoder_ ? decoder_->finish() : "") + "\n"; }

 private:
  std::optional<TokenDecoder> decoder_;
  bool is_first_ = true;
};

/// Prints the prompt and then each token as soon as it is chosen, on rank 0. Returns whether the model's context ended
/// the text.
bool print_sample(const TrainContext& context, Generator& generator, const Generation& what,
                  const Tokenizer* tokenizer) {
  const bool prints = context.is_rank_zero();
  Printer printer(tokenizer);
  std::string prompt;
  for (const int32_t token : what.prompt) prompt += printer.text_of(token);
  if (prints) print(prompt);
  const bool is_full = generator.generate(what, [&](int32_t token) {
    if (prints) print(printer.text_of(token));
  });
  if (prints) print(printer.finish());
  return is_full;
}

ExitCode sample_on_rank(World& world, const TrainOptions& options, const SampleText& sample) {
  const TrainContext context(world, options);
  materialize_weights(context);
  Generator generator(context, options.decode_positions);
  const bool has_headings = sample.prompts.size() > 1 && sample.tokenizer != nullptr;
  Generation what = sample.what;
  for (size_t i = 0; i < sample.prompts.size(); ++i) {
    what.prompt = sample.prompts[i];
    if (has_headings && context.is_rank_zero()) print(fmt::format("[{}/{}]\n", i + 1, sample.prompts.size()));
    const bool is_full = print_sample(context, generator, what, sample.tokenizer.get());
    if (is_full && context.is_rank_zero())
      warn("the text ends here, because the model's context has {} tokens.", options.decode_positions);
  }
  return ExitCode::kDone;
}

}  // namespace

CommandHelp sample_help() {
  SampleOptions options;
  return {
      .name = "sample",
      .summary = "continue a text with a model",
      .usage = "--init DIR|--checkpoint PATH --prompt TEXT [--option value ...]",
      .text =
          "  aliquot sample --checkpoint runs/nano --prompt 'Once upon'\n"
          "  aliquot sample --init hf --prompt 'Once upon' --temperature 0          the most probable text\n"
          "  aliquot sample --init hf --prompt 'Once upon' --ranks 4                sharded over 4 ranks\n"
          "  aliquot sample --init hf --prompt 'Once' --prompt 'The end'            two texts\n\n"
          "Prints the prompt and the tokens that the model generates. Keys and values of earlier tokens are cached. "
          "At ZeRO stage 3, each rank holds a part of the weights, and gathers each unit before its use.",
      .options = help_options(sample_option_table(options)),
      .subcommands = {},
      .exit_codes = {0, 1, 2, 3, 5, 137}};
}

int run_sample(const Arguments& arguments) {
  SampleOptions options = parse_sample_arguments(arguments);
  TrainOptions& run = options.run;
  set_weights(run, options.path(), options.given(), options.base);
  const ModelShape shape = model_shape(run);
  const SampleText sample = sample_text(options, shape);
  run.decode_positions = std::min(sample.longest_prompt() + options.tokens, shape.context);
  run.sequence = std::min(run.decode_positions, run.engine.tensor > 1 ? kRowsOfTensorGroup : kRowsOfPass);
  run.micro_batch = 1;
  return static_cast<int>(run_on_ranks(
      run, [&](World& world, const TrainOptions& resolved) { return sample_on_rank(world, resolved, sample); }));
}

}  // namespace aliquot
