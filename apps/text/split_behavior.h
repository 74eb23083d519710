#pragma once
// How a text is split at the matches of a pattern.

#include <string_view>
#include <vector>

#include "apps/text/pre_tokenizer.h"
#include "engine/options/values.h"

namespace aliquot {

enum class SplitBehavior : uint8_t {
  kRemoved,             // matches are removed
  kIsolated,            // each match is a piece
  kMergedWithPrevious,  // a match belongs to the text before it; the second of two adjacent matches is a piece
  kMergedWithNext,      // a match belongs to the text after it; the first of two adjacent matches is a piece
  kContiguous,          // adjacent matches are one piece
};

/// The names in tokenizer.json.
EnumNames<SplitBehavior> split_behavior_names();

/// A part of a text that is a match or lies between matches.
struct SplitPart {
  size_t begin, end;
  bool is_match;
};

/// Appends the pieces of `text`, whose parts cover it in order, to `to`.
void append_pieces(const TextPiece& text, const std::vector<SplitPart>& parts, SplitBehavior behavior,
                   std::vector<TextPiece>& to);

}  // namespace aliquot
