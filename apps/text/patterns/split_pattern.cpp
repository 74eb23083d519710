#include "apps/text/patterns/split_pattern.h"

#include <algorithm>

#include "apps/text/patterns/pattern_parser.h"
#include "apps/text/unicode/utf8.h"
#include "kernels/system/error.h"

namespace aliquot {

void CodeSet::finish() {
  for (char32_t code = 0; code < 128; ++code) ascii_[code] = find(code);
}

bool CodeSet::find(char32_t code) const {
  const auto is_inside = [code](const auto& range) { return range.first <= code && code <= range.second; };
  const bool is_space = (has_white_space_ || has_other_) && is_white_space(code);
  const bool found = (has_white_space_ && is_space) || (has_other_ && !is_space) || is_in(code, categories_) ||
                     std::ranges::any_of(ranges_, is_inside);
  return found != is_negated_;
}

SplitPattern::SplitPattern(std::string_view pattern) {
  ParsedPattern parsed = parse_pattern(pattern);
  sets_ = std::move(parsed.sets);
  steps_ = std::move(parsed.steps);
}

std::optional<SplitPattern::Match> SplitPattern::find(std::string_view text, size_t from) const {
  thread_local Search search;  // its memory is used again
  search.text = text;
  while (from < text.size()) {
    size_t end = from;
    search.alternatives.clear();
    search.resumed = 0;
    if (run(search, 0, end)) return Match{from, end};
    from += utf8_length(text[from]);
  }
  return std::nullopt;
}

/// Moves `at` over as many code points of the set as the step allows. Sets `shortest` to the position after the
/// smallest number that the step allows. Returns false if there are too few.
bool SplitPattern::repeat(const PatternStep& step, std::string_view text, size_t& at, size_t& shortest) const {
  const CodeSet& set = sets_[step.set];
  uint32_t count = 0;
  shortest = at;
  while (count < step.most && at < text.size()) {
    size_t next = at;
    if (!set.contains(next_code_point(text, next))) break;
    at = next;
    if (++count == step.least) shortest = at;
  }
  return count >= step.least;
}

/// Continues with the alternative that was recorded last.
void SplitPattern::Search::resume(uint32_t& step, size_t& at) {
  constexpr int kLimit = 10'000'000;
  if (++resumed > kLimit) throw UsageError("a regular expression of the tokenizer takes too long on this text.");
  Alternative& last = alternatives.back();
  step = last.step;
  at = last.at;
  if (last.at > last.shortest)
    previous_code_point(text, last.at);
  else
    alternatives.pop_back();
}

bool SplitPattern::run(Search& search, uint32_t first_step, size_t& at) const {
  using Kind = PatternStep::Kind;
  const size_t outer_count = search.alternatives.size();  // a run inside another must leave its alternatives
  const std::string_view text = search.text;
  uint32_t next = first_step;
  while (true) {
    const PatternStep& step = steps_[next++];
    bool holds = true;
    switch (step.kind) {
      case Kind::kOne: {
        size_t next_at = at;
        holds = at < text.size() && sets_[step.set].contains(next_code_point(text, next_at));
        if (holds) at = next_at;
        break;
      }
      case Kind::kRepeat: {
        size_t shortest = at;
        holds = repeat(step, text, at, shortest);
        if (!holds || step.keeps_all || at == shortest) break;
        size_t fewer = at;
        previous_code_point(text, fewer);
        search.alternatives.push_back({next, shortest, fewer});
        break;
      }
      case Kind::kFork: search.alternatives.push_back({step.target, at, at}); break;
      case Kind::kJump: next = step.target; break;
      case Kind::kAhead:
      case Kind::kNotAhead: {
        size_t ahead = at;
        holds = run(search, next, ahead) == (step.kind == Kind::kAhead);
        next = step.target;
        break;
      }
      case Kind::kEnd: search.alternatives.resize(outer_count); return true;
    }
    if (holds) continue;
    if (search.alternatives.size() == outer_count) return false;
    search.resume(next, at);
  }
}

}  // namespace aliquot
