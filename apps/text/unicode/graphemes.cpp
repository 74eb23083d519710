#include "apps/text/unicode/graphemes.h"

#include <algorithm>
#include <iterator>

#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

#include "apps/text/unicode/grapheme_tables.inc"

/// scripts/grapheme_tables.py has the same order. A linker also extends a cluster.
enum class GraphemeClass : uint8_t {
  kOther,
  kCarriageReturn,
  kLineFeed,
  kControl,
  kLinker,
  kExtend,
  kJoiner,
  kSpacingMark,
  kPrepend,
  kLeading,
  kVowel,
  kTrailing,
  kSyllable,
  kSyllableWithTrailing,
  kRegionalIndicator,
  kConsonant,
  kPictograph
};
using enum GraphemeClass;

GraphemeClass class_of(char32_t code) {
  // The class is in the low byte of the last run that begins at or before the code point.
  const auto after = std::ranges::upper_bound(kGraphemeClassRuns, static_cast<uint32_t>(code) << 8 | 0xff);
  return static_cast<GraphemeClass>(*std::prev(after) & 0xff);
}

bool is_control(GraphemeClass c) { return c == kCarriageReturn || c == kLineFeed || c == kControl; }
bool extends(GraphemeClass c) { return c == kLinker || c == kExtend || c == kJoiner; }

/// Whether two adjacent parts of a Hangul syllable belong together.
bool joins_hangul(GraphemeClass left, GraphemeClass right) {
  switch (left) {
    case kLeading: return right == kLeading || right == kVowel || right == kSyllable || right == kSyllableWithTrailing;
    case kVowel:
    case kSyllable: return right == kVowel || right == kTrailing;
    case kTrailing:
    case kSyllableWithTrailing: return right == kTrailing;
    default: return false;
  }
}

/// What the next decision depends on: the code points of the cluster so far.
struct Cluster {
  GraphemeClass last;
  int64_t regional_indicators = 0;  // at the end of the cluster
  bool after_pictograph = false;    // it ends with a pictograph and code points that extend it
  bool after_consonant = false;     // it ends with a consonant and code points that extend it
  bool has_linker = false;          // one of these is a linker

  explicit Cluster(GraphemeClass first) : last(first) { add(first); }
  void add(GraphemeClass c) {
    last = c;
    regional_indicators = c == kRegionalIndicator ? regional_indicators + 1 : 0;
    if (!extends(c)) {
      after_pictograph = c == kPictograph;
      after_consonant = c == kConsonant;
      has_linker = false;
    }
    has_linker = has_linker || c == kLinker;
  }
  /// Whether the next code point belongs to the cluster. The rules are those of Unicode Standard Annex 29.
  bool takes(GraphemeClass next) const {
    if (last == kCarriageReturn && next == kLineFeed) return true;
    if (is_control(last) || is_control(next)) return false;
    if (extends(next) || next == kSpacingMark || last == kPrepend || joins_hangul(last, next)) return true;
    if (after_consonant && has_linker && next == kConsonant) return true;
    if (after_pictograph && last == kJoiner && next == kPictograph) return true;
    return next == kRegionalIndicator && regional_indicators % 2 == 1;
  }
};

}  // namespace

size_t grapheme_end(std::string_view text, size_t begin) {
  // Printable characters of ASCII are clusters, unless a code point follows that is not ASCII.
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  if (byte(begin) >= 0x20 && byte(begin) < 0x7f && (begin + 1 == text.size() || byte(begin + 1) < 0x80))
    return begin + 1;
  size_t end = begin;
  Cluster cluster(class_of(next_code_point(text, end)));
  while (end < text.size()) {
    size_t after = end;
    const GraphemeClass next = class_of(next_code_point(text, after));
    if (!cluster.takes(next)) break;
    cluster.add(next);
    end = after;
  }
  return end;
}

}  // namespace aliquot
