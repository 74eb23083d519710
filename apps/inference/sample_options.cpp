#include "apps/inference/sample_options.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/inference/inference_options.h"
#include "apps/options/arguments.h"
#include "kernels/system/error.h"

namespace aliquot {

SampleOptions::SampleOptions() : run(inference_options()) {}

namespace {

/// Parses numbers with commas between them.
std::vector<int32_t> parse_tokens(std::string_view text) {
  std::vector<int32_t> tokens;
  for (std::string_view rest = text; !rest.empty() || tokens.empty();) {
    const auto end = std::min(rest.find(','), rest.size());
    tokens.push_back(static_cast<int32_t>(parse_count(rest.substr(0, end), {0, INT32_MAX})));
    if (end + 1 == rest.size()) throw UsageError(fmt::format("invalid value '{}': it ends with a comma.", text));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return tokens;
}

/// Adds the options prompt and prompt-tokens, which can be given several times.
void add_prompts(OptionTable& t, SampleOptions& o) {
  t.add({"prompt", "TEXT",
         "The beginning of the text, in UTF-8. Can be given several times; each prompt is continued as it would be "
         "alone.",
         false, [&o](std::string_view text) { o.prompts.emplace_back(text); },
         [&o]() -> OptionValue { return o.prompts.empty() ? OptionValue() : OptionValue(o.prompts.back()); }});
  t.add({"prompt-tokens", "N,N,...",
         "The tokens of a prompt, instead of --prompt. The output has tokens too, one line for each prompt.", false,
         [&o](std::string_view text) { o.prompt_tokens.push_back(parse_tokens(text)); },
         [&o]() -> OptionValue {
           return o.prompt_tokens.empty() ? OptionValue()
                                          : OptionValue(fmt::format("{}", fmt::join(o.prompt_tokens.back(), ",")));
         }});
}

/// Removes the prompts of a configuration file if the command line has prompts, because it takes precedence.
void remove_replaced_prompts(std::vector<GivenOption>& given) {
  const auto is_prompt = [](const GivenOption& one) { return one.name == "prompt" || one.name == "prompt-tokens"; };
  const auto is_on_command_line = [&](const GivenOption& one) { return is_prompt(one) && one.where.starts_with("--"); };
  if (std::ranges::none_of(given, is_on_command_line)) return;
  std::erase_if(given, [&](const GivenOption& one) { return is_prompt(one) && !is_on_command_line(one); });
}

}  // namespace

void add_token_choice(OptionTable& t, TokenChoice& choice) {
  t.real("temperature", choice.temperature, {.least = 0, .most = 1e6},
         "Divides the logits: below 1 the text is more probable, above 1 more varied. 0: always the most probable "
         "token.");
  t.count("top-k", choice.top_k, {0, int64_t{1} << 31}, "Choose among the K most probable tokens; 0: among all.");
  t.real("top-p", choice.top_p, {.least = 1e-9, .most = 1},
         "Choose among the most probable tokens whose probabilities reach this sum; 1: among all.");
  t.count("seed", choice.seed, {0, INT64_MAX}, "Seed of the choices. The same seed gives the same text.");
}

OptionTable sample_option_table(SampleOptions& o) {
  OptionTable t;
  t.heading("Model");
  t.text("init", "FILE|DIR", o.init, "Hugging Face weights: a folder with safetensors and a config.json.");
  t.text("checkpoint", "PATH", o.checkpoint,
         "A checkpoint, or a directory of checkpoints, of which the newest is used.");
  add_base(t, o.base);
  add_train_options(t, o.run, {"model"});
  t.text("tokenizer", "FILE", o.tokenizer,
         "The tokenizer.json of the model; default: the one next to the weights, or in the directory of the "
         "checkpoints, where aliquot train writes it.");
  t.heading("Text");
  add_prompts(t, o);
  t.count("tokens", o.tokens, {1, int64_t{1} << 31}, "The largest number of tokens after the prompt.");
  t.text("document-start", "TOKEN", o.document_start,
         "Token before the prompt; none: no token; auto: with --init, the tokens that the tokenizer.json puts before a "
         "text, and with --checkpoint no token.");
  t.text("stop", "TOKEN", o.stop,
         "Token that ends the text; none: no token; auto: eos_token_id of the weights, or <|endoftext|>, "
         "<|end_of_text|>, </s> or <eos>.");
  t.heading("Choice of tokens");
  add_token_choice(t, o.choice);
  add_sharding(t, o.run);
  add_train_options(t, o.run, {"tensor"});
  add_config(t, o.config);
  return t;
}

SampleOptions parse_sample_arguments(const std::vector<std::string>& arguments) {
  SampleOptions options;
  const OptionTable table = sample_option_table(options);
  std::vector<GivenOption> given = read_arguments(table, arguments);
  remove_replaced_prompts(given);
  set_options(table, given);
  if (options.init.empty() == options.checkpoint.empty())
    throw UsageError("sample needs either --init or --checkpoint, the weights of the model.");
  if (!options.prompts.empty() && !options.prompt_tokens.empty())
    throw UsageError("--prompt and --prompt-tokens cannot be combined: leave one out.");
  if (options.prompts.empty()) options.prompts.emplace_back();
  return options;
}

}  // namespace aliquot
