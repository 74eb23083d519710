#pragma once
// The options of `aliquot sample`.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/inference/token_choice.h"
#include "apps/options/train_options.h"
#include "engine/options/option_table.h"

namespace aliquot {

struct SampleOptions {
  SampleOptions();

  TrainOptions run;
  std::string init, checkpoint;  // the path of the weights; one of them is empty
  std::string base;              // the weights to which adapters belong; may be empty
  std::string tokenizer;         // empty: the one that belongs to the weights
  std::vector<std::string> prompts;
  std::vector<std::vector<int32_t>> prompt_tokens;  // instead of `prompts`; no tokenizer is needed then
  std::string document_start = "auto", stop = "auto";
  int64_t tokens = 100;
  TokenChoice choice = {};
  std::string config;  // the parser reads this file

  /// The option that names the weights, with its value, for messages; and the path.
  std::string given() const { return init.empty() ? "--checkpoint " + checkpoint : "--init " + init; }
  const std::string& path() const { return init.empty() ? checkpoint : init; }
};

/// Adds the options that determine how a token is chosen. `choice` must outlive the table.
void add_token_choice(OptionTable& table, TokenChoice& choice);

/// `options` must outlive the table.
OptionTable sample_option_table(SampleOptions& options);

/// Parses the arguments of `aliquot sample`. Throws UsageError, for example if a required option is missing.
SampleOptions parse_sample_arguments(const std::vector<std::string>& arguments);

}  // namespace aliquot
