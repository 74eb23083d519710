#include "apps/text/pre_tokenizer.h"

#include <memory>
#include <utility>

#include "apps/text/patterns/text_pattern.h"
#include "apps/text/split_behavior.h"
#include "apps/text/unicode/unicode.h"
#include "apps/text/unicode/utf8.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// GPT-2's pattern, which ByteLevel uses: contractions, then words, numbers and other characters with a blank before
/// them, then white space without the last blank before a word.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::vector<SplitPart> parts_of(const TextPattern& pattern, std::string_view text, bool inverts) {
  std::vector<SplitPart> parts;
  size_t at = 0;
  for (auto match = pattern.find(text, 0); match; match = pattern.find(text, match->end)) {
    if (at < match->begin) parts.push_back({at, match->begin, inverts});
    parts.push_back({match->begin, match->end, !inverts});
    at = match->end;
  }
  if (at < text.size()) parts.push_back({at, text.size(), inverts});
  return parts;
}

/// The parts of a text in which each code point for which `matches` holds is a match.
template <typename Matches>
std::vector<SplitPart> parts_by_code_point(std::string_view text, Matches&& matches) {
  std::vector<SplitPart> parts;
  size_t unmatched = 0, at = 0;
  while (at < text.size()) {
    const size_t begin = at;
    if (!matches(next_code_point(text, at))) continue;
    if (unmatched < begin) parts.push_back({unmatched, begin, false});
    parts.push_back({begin, at, true});
    unmatched = at;
  }
  if (unmatched < text.size()) parts.push_back({unmatched, text.size(), false});
  return parts;
}

/// Replaces each piece by the pieces that cut(piece, pieces) appends.
template <typename Cut>
void cut_all(TextPieces& text, Cut&& cut) {
  const std::vector<TextPiece> before = std::exchange(text.pieces, {});
  for (const TextPiece& piece : before) cut(piece, text.pieces);
}

/// Returns a piece with other text, which `text` then owns.
TextPiece changed(TextPieces& text, const TextPiece& piece, std::string to) {
  text.changed.push_back(std::move(to));
  return {text.changed.back(), piece.is_first};
}

enum class PrependScheme : uint8_t { kAlways, kFirst, kNever };
constexpr EnumName<PrependScheme> kPrependSchemes[] = {
    {"always", PrependScheme::kAlways}, {"first", PrependScheme::kFirst}, {"never", PrependScheme::kNever}};

/// Reads a value that must be one of `names`.
template <typename E>
E choice(const JsonField& field, EnumNames<E> names) {
  const std::string& text = field.text();
  try {
    return parse_enum(text, names);
  } catch (const UsageError&) {
    std::string all;
    for (const std::string& name : names_of(names)) all += (all.empty() ? "" : ", ") + name;
    field.refuse("not supported (only " + all + ")");
  }
}

}  // namespace

void PreTokenizer::add_byte_level(const JsonField& field) {
  field.allow_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  is_byte_level_ = true;
  if (field["add_prefix_space"].flag(true)) {
    steps_.emplace_back([](TextPieces& text) {
      cut_all(text, [&text](const TextPiece& piece, std::vector<TextPiece>& to) {
        to.push_back(piece.text.starts_with(' ') ? piece : changed(text, piece, " " + std::string(piece.text)));
      });
    });
  }
  if (!field["use_regex"].flag(true)) return;
  steps_.emplace_back(
      [pattern = std::make_shared<const TextPattern>(SplitPattern(kByteLevelPattern))](TextPieces& text) {
        cut_all(text, [&](const TextPiece& piece, std::vector<TextPiece>& to) {
          append_pieces(piece, parts_of(*pattern, piece.text, false), SplitBehavior::kIsolated, to);
        });
      });
}

void PreTokenizer::add_split(const JsonField& field) {
  field.allow_keys({"type", "pattern", "behavior", "invert"});
  const SplitBehavior behavior = choice(field["behavior"], split_behavior_names());
  const bool inverts = field["invert"].flag(false);
  auto pattern = std::make_shared<const TextPattern>(field["pattern"]);
  steps_.emplace_back([behavior, inverts, pattern](TextPieces& text) {
    cut_all(text, [&](const TextPiece& piece, std::vector<TextPiece>& to) {
      append_pieces(piece, parts_of(*pattern, piece.text, inverts), behavior, to);
    });
  });
}

void PreTokenizer::add_metaspace(const JsonField& field) {
  field.allow_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const JsonField replacement = field["replacement"], scheme = field["prepend_scheme"];
  const std::u32string code = to_code_points(replacement.text());
  replacement.require(code.size() == 1, "expected one character");
  if (const JsonField copy = field["str_rep"]; !copy.is_null())
    copy.require(copy.text() == replacement.text(), "expected the same text as in replacement");
  // Files of earlier versions have add_prefix_space in place of prepend_scheme.
  const JsonField prefix = field["add_prefix_space"];
  PrependScheme prepend = prefix.flag(true) ? PrependScheme::kAlways : PrependScheme::kNever;
  if (!scheme.is_null()) {
    prepend = choice<PrependScheme>(scheme, kPrependSchemes);
    const bool contradicts = !prefix.flag(true) && prepend != PrependScheme::kNever;
    prefix.require(!contradicts, "it contradicts prepend_scheme");
  }
  steps_.emplace_back([mark = to_utf8(code), mark_code = code[0], prepend,
                       splits = field["split"].flag(true)](TextPieces& text) {
    cut_all(text, [&](const TextPiece& piece, std::vector<TextPiece>& to) {
      std::string marked;
      for (const char byte : piece.text) {
        if (byte == ' ')
          marked += mark;
        else
          marked += byte;
      }
      const bool prepends = prepend == PrependScheme::kAlways || (prepend == PrependScheme::kFirst && piece.is_first);
      if (prepends && !marked.starts_with(mark)) marked.insert(0, mark);
      const TextPiece whole = changed(text, piece, std::move(marked));
      if (!splits) return to.push_back(whole);
      const auto parts = parts_by_code_point(whole.text, [&](char32_t found) { return found == mark_code; });
      append_pieces(whole, parts, SplitBehavior::kMergedWithNext, to);
    });
  });
}

void PreTokenizer::add(const JsonField& field) {
  if (field.is_null()) return;
  const std::string& type = field["type"].text();
  if (is_byte_level_) field["type"].refuse("not supported after ByteLevel, which must be the last pre-tokenizer");
  if (type == "Sequence") {
    field.allow_keys({"type", "pretokenizers"});
    field["pretokenizers"].for_each([this](const JsonField& part) {
      part.require(part.json().is_object(), "expected an object");
      add(part);
    });
  } else if (type == "ByteLevel") {
    add_byte_level(field);
  } else if (type == "Split") {
    add_split(field);
  } else if (type == "Metaspace") {
    add_metaspace(field);
  } else if (type == "WhitespaceSplit") {
    field.allow_keys({"type"});
    steps_.emplace_back([](TextPieces& text) {
      cut_all(text, [](const TextPiece& piece, std::vector<TextPiece>& to) {
        append_pieces(piece, parts_by_code_point(piece.text, is_white_space), SplitBehavior::kRemoved, to);
      });
    });
  } else if (type == "Digits") {
    field.allow_keys({"type", "individual_digits"});
    const bool isolates = field["individual_digits"].flag(false);
    steps_.emplace_back([isolates, numbers = *category_set("N")](TextPieces& text) {
      cut_all(text, [&](const TextPiece& piece, std::vector<TextPiece>& to) {
        const auto parts = parts_by_code_point(piece.text, [&](char32_t code) { return is_in(code, numbers); });
        append_pieces(piece, parts, isolates ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, to);
      });
    });
  } else {
    field["type"].refuse("not supported (only Sequence, ByteLevel, Split, Metaspace, WhitespaceSplit, Digits)");
  }
}

}  // namespace aliquot
