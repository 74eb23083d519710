#pragma once
// The pattern of a Split pre-tokenizer or a Replace normalizer: a string or a regular expression.

#include <optional>
#include <string>

#include "apps/text/json_field.h"
#include "apps/text/patterns/split_pattern.h"

namespace aliquot {

class TextPattern {
 public:
  /// `field` is {"String": ...} or {"Regex": ...}. Throws UsageError for a regular expression that is not supported.
  explicit TextPattern(const JsonField& field);
  explicit TextPattern(const SplitPattern& pattern) : regex_(pattern) {}

  /// Returns the first match at or after `from`. Safe to call from several threads.
  std::optional<SplitPattern::Match> find(std::string_view text, size_t from) const;

 private:
  std::string literal_;
  std::optional<SplitPattern> regex_;
};

}  // namespace aliquot
