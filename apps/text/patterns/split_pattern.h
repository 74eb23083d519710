#pragma once
// The regular expressions of pre-tokenizers and normalizers.

#include <bitset>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/text/unicode/unicode.h"

namespace aliquot {

/// A set of code points.
class CodeSet {
 public:
  void add_range(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void add(char32_t code) { add_range(code, code); }
  void add_categories(CategorySet set) { categories_ |= set; }
  void add_white_space(bool is_negated) { (is_negated ? has_other_ : has_white_space_) = true; }
  void negate() { is_negated_ = true; }
  /// Must be called after the last change and before contains().
  void finish();

  bool contains(char32_t code) const { return code < 128 ? ascii_[code] : find(code); }

 private:
  bool find(char32_t code) const;

  std::vector<std::pair<char32_t, char32_t>> ranges_;
  CategorySet categories_ = 0;
  bool has_white_space_ = false, has_other_ = false, is_negated_ = false;
  std::bitset<128> ascii_;
};

/// One instruction of a pattern. A failed instruction resumes the alternative that was recorded last.
struct PatternStep {
  enum class Kind : uint8_t {
    kOne,       // one code point of `set`
    kRepeat,    // `least` to `most` code points of `set`, as many as possible
    kFork,      // continue; the alternative is `target`
    kJump,      // go to `target`
    kAhead,     // the steps up to kEnd match here; continue at `target`
    kNotAhead,  // the steps up to kEnd do not match here; continue at `target`
    kEnd,       // the match is complete
  };
  Kind kind;
  bool keeps_all = false;  // kRepeat: fewer code points are no alternative
  uint32_t set = 0, target = 0;
  uint32_t least = 0, most = 0;
};

/// A pattern that this class does not support, or a syntax error. what() states the part and the reason.
struct PatternError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A regular expression with the meaning that Oniguruma (Ruby syntax) gives it: the first alternative that matches
/// wins, and repetitions take as much as possible. Supports the syntax that the patterns of tokenizers use:
///   literals, \r \n \t \f \v, escaped punctuation, `.`
///   \s \S \d \D, \p{X} \P{X} with a general category X
///   [...] and [^...] with ranges
///   | (...) (?:...) (?i:...) (?=...) (?!...)
///   ? * + {n} {n,} {n,m}, and ?+ *+ ++, which do not give back
/// (?i:...) may have only ASCII. Groups may be repeated with ? * +.
class SplitPattern {
 public:
  /// Throws PatternError for other syntax, and for a pattern that matches the empty string.
  explicit SplitPattern(std::string_view pattern);

  struct Match {
    size_t begin, end;
  };
  /// Returns the first match at or after `from`. Safe to call from several threads. Throws UsageError if a position
  /// takes more than ten million attempts.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Alternative {
    uint32_t step;
    size_t shortest, at;  // positions from `at` back to `shortest` remain
  };

  struct Search {
    std::string_view text;
    std::vector<Alternative> alternatives;
    int resumed = 0;

    void resume(uint32_t& step, size_t& at);
  };

  bool run(Search& search, uint32_t first_step, size_t& at) const;
  bool repeat(const PatternStep& step, std::string_view text, size_t& at, size_t& shortest) const;

  std::vector<CodeSet> sets_;
  std::vector<PatternStep> steps_;
};

}  // namespace aliquot
