#include "apps/text/added_tokens.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/text/unicode/unicode.h"
#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

/// Moves `begin` to the left over white space, but not below `least`.
size_t with_space_before(std::string_view text, size_t begin, size_t least) {
  while (begin > least) {
    size_t before = begin;
    previous_code_point(text, before);
    size_t after = before;
    if (!is_white_space(next_code_point(text, after))) break;
    begin = before;
  }
  return std::max(begin, least);
}

size_t with_space_after(std::string_view text, size_t end) {
  while (end < text.size()) {
    size_t after = end;
    if (!is_white_space(next_code_point(text, after))) break;
    end = after;
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(const JsonField& field, const TokenModel& model, const Normalizer& normalizer) {
  if (field.is_null()) return;
  field.for_each([&](const JsonField& entry) { add(entry, model, normalizer); });
}

void AddedTokens::add(const JsonField& field, const TokenModel& model, const Normalizer& normalizer) {
  field.allow_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  const std::string& content = field["content"].text();
  field["content"].require(!content.empty(), "expected a string that is not empty");
  field["content"].require(!find(content), "this token occurs twice");
  const JsonField single = field["single_word"];
  if (single.flag(false)) single.refuse("not supported (only false)");
  const auto token = static_cast<int32_t>(field["id"].index(kLargestToken));
  const auto of_model = model.find(content);
  const int64_t expected = of_model ? *of_model : largest_ >= model.token_count() ? largest_ + 1 : model.token_count();
  field["id"].require(token == expected, fmt::format("expected {}, {}", expected,
                                                     of_model ? "the number of this token in model.vocab"
                                                              : "the next number that no other token has"));
  largest_ = std::max<int64_t>(largest_, token);
  tokens_.emplace(content, token);
  if (field["special"].flag(false)) special_.insert(token);
  const auto index = static_cast<int32_t>(entries_.size());
  entries_.push_back({token, field["lstrip"].flag(false), field["rstrip"].flag(false)});
  if (!field["normalized"].flag()) return plain_.insert(content, index);
  std::string changed = content;
  normalizer.apply(changed);
  if (!changed.empty()) normalized_.insert(changed, index);
}

std::vector<TextSegment> AddedTokens::cut(std::string_view text, const ByteTrie& contents) const {
  std::vector<TextSegment> segments;
  size_t covered = 0;  // end of the last segment
  size_t at = contents.is_empty() ? text.size() : 0;
  while (at < text.size()) {
    size_t length = 0;
    int32_t index = 0;
    contents.for_prefixes(text.substr(at), [&](size_t found, int32_t value) {
      length = found;
      index = value;
    });
    if (length == 0) {
      ++at;
      continue;
    }
    const Entry& entry = entries_[static_cast<size_t>(index)];
    const size_t begin = entry.takes_left ? with_space_before(text, at, covered) : at;
    at += length;
    const size_t end = entry.takes_right ? with_space_after(text, at) : at;
    if (covered < begin) segments.push_back({covered, begin, std::nullopt});
    segments.push_back({begin, end, entry.token});
    covered = end;
  }
  if (covered < text.size()) segments.push_back({covered, text.size(), std::nullopt});
  return segments;
}

}  // namespace aliquot
