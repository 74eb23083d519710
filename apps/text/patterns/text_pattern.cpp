#include "apps/text/patterns/text_pattern.h"

namespace aliquot {

TextPattern::TextPattern(const JsonField& field) {
  field.allow_keys({"String", "Regex"});
  field.require(field.json().size() == 1, "expected one key, String or Regex");
  if (const JsonField literal = field["String"]; !literal.is_null()) {
    literal_ = literal.text();
    literal.require(!literal_.empty(), "expected a string that is not empty");
    return;
  }
  const JsonField regex = field["Regex"];
  try {
    regex_.emplace(regex.text());
  } catch (const PatternError& error) {
    regex.refuse(error.what());
  }
}

std::optional<SplitPattern::Match> TextPattern::find(std::string_view text, size_t from) const {
  if (regex_) return regex_->find(text, from);
  const size_t found = text.find(literal_, from);
  if (found == std::string_view::npos) return std::nullopt;
  return SplitPattern::Match{found, found + literal_.size()};
}

}  // namespace aliquot
