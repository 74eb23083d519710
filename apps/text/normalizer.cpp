#include "apps/text/normalizer.h"

#include <array>
#include <memory>

#include "apps/text/patterns/text_pattern.h"
#include "apps/text/precompiled_map.h"
#include "apps/text/unicode/unicode.h"
#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

struct NamedForm {
  std::string_view name;
  NormalizationForm form;
};
constexpr std::array kForms{NamedForm{"NFC", NormalizationForm::kNfc}, NamedForm{"NFD", NormalizationForm::kNfd},
                            NamedForm{"NFKC", NormalizationForm::kNfkc}, NamedForm{"NFKD", NormalizationForm::kNfkd}};

void replace_all(std::string& text, const TextPattern& pattern, std::string_view content) {
  std::string result;
  size_t copied = 0;
  for (auto match = pattern.find(text, 0); match; match = pattern.find(text, match->end)) {
    result.append(text, copied, match->begin - copied).append(content);
    copied = match->end;
  }
  if (copied == 0) return;
  text = std::move(result.append(text, copied, std::string::npos));
}

void strip(std::string& text, bool at_begin, bool at_end) {
  size_t begin = 0, end = text.size();
  const auto is_space_at = [&text](size_t at) { return is_white_space(next_code_point(text, at)); };
  while (at_begin && begin < end && is_space_at(begin)) begin += utf8_length(text[begin]);
  while (at_end && begin < end) {
    size_t last = end;
    previous_code_point(text, last);
    if (!is_space_at(last)) break;
    end = last;
  }
  text = text.substr(begin, end - begin);
}

bool is_removed_by_nmt(char32_t c) {
  return (c >= 0x01 && c <= 0x08) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
}

bool is_blank_of_nmt(char32_t c) {
  return c == 0x09 || c == 0x0a || c == 0x0c || c == 0x0d || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
}

/// Removes control characters, and replaces other white space by blanks.
void apply_nmt(std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t code = next_code_point(text, at);
    if (is_removed_by_nmt(code)) continue;
    if (is_blank_of_nmt(code))
      result += ' ';
    else
      result.append(text, begin, at - begin);
  }
  text = std::move(result);
}

}  // namespace

void Normalizer::add(const JsonField& field) {
  if (field.is_null()) return;
  const std::string& type = field["type"].text();
  for (const NamedForm& named : kForms) {
    if (named.name != type) continue;
    field.allow_keys({"type"});
    steps_.emplace_back([form = named.form](std::string& text) { text = normalized(text, form); });
    return;
  }
  if (type == "Sequence") {
    field.allow_keys({"type", "normalizers"});
    field["normalizers"].for_each([this](const JsonField& part) {
      part.require(part.json().is_object(), "expected an object");
      add(part);
    });
  } else if (type == "Prepend") {
    field.allow_keys({"type", "prepend"});
    steps_.emplace_back([prefix = field["prepend"].text()](std::string& text) {
      if (!text.empty()) text.insert(0, prefix);
    });
  } else if (type == "Replace") {
    field.allow_keys({"type", "pattern", "content"});
    steps_.emplace_back(
        [pattern = std::make_shared<const TextPattern>(field["pattern"]),
         content = field["content"].text()](std::string& text) { replace_all(text, *pattern, content); });
  } else if (type == "Strip") {
    field.allow_keys({"type", "strip_left", "strip_right"});
    steps_.emplace_back([left = field["strip_left"].flag(), right = field["strip_right"].flag()](std::string& text) {
      strip(text, left, right);
    });
  } else if (type == "Precompiled") {
    field.allow_keys({"type", "precompiled_charsmap"});
    steps_.emplace_back([map = std::make_shared<const PrecompiledMap>(field["precompiled_charsmap"])](
                            std::string& text) { map->apply(text); });
  } else if (type == "Nmt") {
    field.allow_keys({"type"});
    steps_.emplace_back(apply_nmt);
  } else {
    field["type"].refuse(
        "not supported (only Sequence, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, Strip)");
  }
}

}  // namespace aliquot
