#pragma once
// Finds out whether two tokenizer.json encode texts equally.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace aliquot {

/// Returns the parts of a tokenizer.json that determine the numbers of tokens, in a form that does not depend on how
/// the file writes them. For example, a missing key has its default, and each merge is a pair of tokens. Two files with
/// equal results encode every text equally. Does not check whether the parts are supported. Throws UsageError, whose
/// message begins with `file`, if `text` is not a JSON object, or if a part has an unexpected type.
nlohmann::json token_rules(std::string_view text, const std::string& file);

}  // namespace aliquot
