#include "apps/text/split_behavior.h"

#include <algorithm>
#include <array>

namespace aliquot {
namespace {

constexpr std::array kNames{EnumName<SplitBehavior>{"Removed", SplitBehavior::kRemoved},
                            EnumName<SplitBehavior>{"Isolated", SplitBehavior::kIsolated},
                            EnumName<SplitBehavior>{"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                            EnumName<SplitBehavior>{"MergedWithNext", SplitBehavior::kMergedWithNext},
                            EnumName<SplitBehavior>{"Contiguous", SplitBehavior::kContiguous}};

/// Joins each match that does not follow another match with the part before it.
std::vector<SplitPart> merged_with_previous(const std::vector<SplitPart>& parts) {
  std::vector<SplitPart> merged;
  bool after_match = false;
  for (const SplitPart& part : parts) {
    if (part.is_match && !after_match && !merged.empty())
      merged.back().end = part.end;
    else
      merged.push_back(part);
    after_match = part.is_match;
  }
  return merged;
}

/// Joins each match that does not precede another match with the part after it.
std::vector<SplitPart> merged_with_next(const std::vector<SplitPart>& parts) {
  std::vector<SplitPart> merged;
  bool before_match = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->is_match && !before_match && !merged.empty())
      merged.back().begin = part->begin;
    else
      merged.push_back(*part);
    before_match = part->is_match;
  }
  std::ranges::reverse(merged);
  return merged;
}

std::vector<SplitPart> contiguous(const std::vector<SplitPart>& parts) {
  std::vector<SplitPart> joined;
  for (const SplitPart& part : parts) {
    if (!joined.empty() && joined.back().is_match == part.is_match)
      joined.back().end = part.end;
    else
      joined.push_back(part);
  }
  return joined;
}

}  // namespace

EnumNames<SplitBehavior> split_behavior_names() { return kNames; }

void append_pieces(const TextPiece& text, const std::vector<SplitPart>& parts, SplitBehavior behavior,
                   std::vector<TextPiece>& to) {
  const auto append = [&](const std::vector<SplitPart>& pieces) {
    for (const SplitPart& piece : pieces) {
      if (piece.begin == piece.end || (piece.is_match && behavior == SplitBehavior::kRemoved)) continue;
      to.push_back({text.text.substr(piece.begin, piece.end - piece.begin), text.is_first && piece.begin == 0});
    }
  };
  switch (behavior) {
    case SplitBehavior::kMergedWithPrevious: return append(merged_with_previous(parts));
    case SplitBehavior::kMergedWithNext: return append(merged_with_next(parts));
    case SplitBehavior::kContiguous: return append(contiguous(parts));
    default: return append(parts);
  }
}

}  // namespace aliquot
