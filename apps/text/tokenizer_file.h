#pragma once
// The tokenizer.json that belongs to weights or to a checkpoint.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/text/tokenizer.h"

namespace aliquot {

inline constexpr const char* kTokenizerFile = "tokenizer.json";

/// Returns the path of the tokenizer.json in the directory `weights`, next to the file `weights`, or in the directory
/// that contains the checkpoint `weights`. Returns nullopt if there is none.
std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& weights);

/// Returns the tokens that the post-processor of the tokenizer.json puts before a text, for example <s>. Throws
/// UsageError if the post-processor is invalid.
std::vector<int32_t> tokens_before_text(const Tokenizer& tokenizer);

/// Returns eos_token_id of the generation_config.json in the directory `weights`, else that of the config.json, else
/// the end-of-text token of the tokenizer. Returns an empty list if there is none. Throws UsageError for an invalid
/// file.
std::vector<int32_t> end_tokens(const std::filesystem::path& weights, const Tokenizer& tokenizer);

}  // namespace aliquot
