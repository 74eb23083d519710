#include "apps/text/patterns/pattern_parser.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <limits>
#include <optional>

#include "apps/text/unicode/utf8.h"

namespace aliquot {
namespace {

constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();
constexpr CategorySet kAllCategories = (CategorySet{1} << 30) - 1;

[[noreturn]] void refuse(const std::string& part) { throw PatternError(part + " is not supported"); }

struct Node {
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat, kAhead, kNotAhead };
  Kind kind = Kind::kSequence;
  uint32_t set = 0, least = 1, most = 1;
  bool keeps_all = false;
  std::vector<Node> parts = {};
};

/// Whether the node can match without taking a code point.
bool can_be_empty(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kSet: return false;
    case Node::Kind::kSequence: return std::ranges::all_of(node.parts, can_be_empty);
    case Node::Kind::kChoice: return std::ranges::any_of(node.parts, can_be_empty);
    case Node::Kind::kRepeat: return node.least == 0 || can_be_empty(node.parts.front());
    default: return true;
  }
}

/// Builds the tree of a pattern by recursive descent.
class Parser {
 public:
  Parser(std::string_view pattern, std::vector<CodeSet>& sets) : pattern_(pattern), sets_(sets) {}

  Node parse() {
    Node all = choice();
    if (at_ < pattern_.size()) throw PatternError("the pattern has a ) without a (");
    return all;
  }

 private:
  bool is_at(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool skip(std::string_view text) {
    if (!is_at(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t next() {
    if (at_ >= pattern_.size()) throw PatternError("the pattern ends too early");
    return next_code_point(pattern_, at_);
  }

  Node choice();
  Node sequence();
  Node quantified(Node part);
  Node group();
  Node atom();
  Node set();
  void set_item(CodeSet& to);
  std::optional<char32_t> escape(CodeSet& to);
  void property(CodeSet& to, bool is_negated);
  void literal(CodeSet& to, char32_t code) const;
  uint32_t number();
  Node add_set(CodeSet set) {
    set.finish();
    sets_.push_back(std::move(set));
    return {.kind = Node::Kind::kSet, .set = static_cast<uint32_t>(sets_.size() - 1)};
  }

  static constexpr int kDepthLimit = 32;
  std::string_view pattern_;
  std::vector<CodeSet>& sets_;
  size_t at_ = 0;
  int depth_ = 0;
  bool ignores_case_ = false;
};

Node Parser::choice() {
  if (++depth_ > kDepthLimit) throw PatternError("the pattern has too many groups inside groups");
  Node all{.kind = Node::Kind::kChoice};
  do all.parts.push_back(sequence());
  while (skip("|"));
  --depth_;
  return all.parts.size() == 1 ? std::move(all.parts.front()) : all;
}

Node Parser::sequence() {
  Node all;
  while (at_ < pattern_.size() && !is_at("|") && !is_at(")")) all.parts.push_back(quantified(atom()));
  return all;
}

uint32_t Parser::number() {
  uint32_t value = 0;
  const size_t begin = at_;
  while (at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9' && value < 10000)
    value = 10 * value + static_cast<uint32_t>(pattern_[at_++] - '0');
  if (at_ == begin) refuse("a { without a valid number of repetitions");
  return value;
}

Node Parser::quantified(Node part) {
  Node all{.kind = Node::Kind::kRepeat};
  const bool is_counted = is_at("{");
  if (skip("?")) {
    all.least = 0;
  } else if (skip("*")) {
    all.least = 0, all.most = kUnlimited;
  } else if (skip("+")) {
    all.most = kUnlimited;
  } else if (skip("{")) {
    all.least = all.most = number();
    if (skip(",")) all.most = is_at("}") ? kUnlimited : number();
    if (!skip("}") || all.least > all.most || all.most == 0) refuse("a { without a valid number of repetitions");
  } else {
    return part;
  }
  if (!is_counted) all.keeps_all = skip("+");
  if (is_at("?") || is_at("*") || is_at("+") || is_at("{")) refuse("a quantifier after a quantifier");
  const bool is_set = part.kind == Node::Kind::kSet;
  if (!is_set && (all.keeps_all || is_counted)) refuse("a group before {n} or a possessive quantifier");
  if (!is_set && can_be_empty(part)) refuse("the repetition of a group that can be empty");
  all.parts.push_back(std::move(part));
  return all;
}

Node Parser::group() {
  Node look;
  const bool outer_case = ignores_case_;
  if (skip("?=")) {
    look.kind = Node::Kind::kAhead;
  } else if (skip("?!")) {
    look.kind = Node::Kind::kNotAhead;
  } else if (skip("?i:")) {
    ignores_case_ = true;
  } else if (!skip("?:") && is_at("?")) {
    refuse(fmt::format("the group '({}'", pattern_.substr(at_, 3)));
  }
  Node inside = choice();
  if (!skip(")")) throw PatternError("the pattern has a ( without a )");
  ignores_case_ = outer_case;
  if (look.kind == Node::Kind::kSequence) return inside;
  look.parts.push_back(std::move(inside));
  return look;
}

Node Parser::atom() {
  // With ignored case, Oniguruma matches these pairs with one code point as well, for example "ss" with U+00DF.
  constexpr std::array<std::string_view, 5> kFoldedPairs{"ff", "fi", "fl", "ss", "st"};
  for (const std::string_view pair : kFoldedPairs) {
    std::string ahead(pattern_.substr(at_, 2));
    for (char& c : ahead) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c;
    if (ignores_case_ && ahead == pair) refuse(fmt::format("'{}' in a group (?i:...)", pair));
  }
  if (skip("(")) return group();
  if (skip("[")) return set();
  CodeSet one;
  if (skip("\\")) {
    if (const auto code = escape(one)) literal(one, *code);
  } else if (skip(".")) {
    one.add('\n');
    one.negate();
  } else {
    const char32_t code = next();
    if (code < 128 && std::string_view("^$*+?{}]").find(static_cast<char>(code)) != std::string_view::npos)
      refuse(fmt::format("'{}' at this place", static_cast<char>(code)));
    literal(one, code);
  }
  return add_set(std::move(one));
}

/// Adds `code`, and its other cases if they are ignored.
void Parser::literal(CodeSet& to, char32_t code) const {
  to.add(code);
  if (!ignores_case_) return;
  if (code >= 128) refuse("a code point that is not ASCII in a group (?i:...)");
  const char32_t lower = code | 0x20;
  if (lower < 'a' || lower > 'z') return;
  to.add(code ^ 0x20);
  if (lower == 's') to.add(0x17f);   // long s
  if (lower == 'k') to.add(0x212a);  // Kelvin sign
}

void Parser::property(CodeSet& to, bool is_negated) {
  const size_t end = pattern_.find('}', at_);
  if (!skip("{") || end == std::string_view::npos) refuse("\\p without {...}");
  const std::string_view name = pattern_.substr(at_, end - at_);
  const auto set = category_set(name);
  if (!set) refuse(fmt::format("the property '{}'", name));
  to.add_categories(is_negated ? kAllCategories & ~*set : *set);
  at_ = end + 1;
}

/// Parses what follows a backslash. Returns a literal, or adds a class to `to` and returns nullopt.
std::optional<char32_t> Parser::escape(CodeSet& to) {
  constexpr std::string_view kLetters = "rntfv", kCodes = "\r\n\t\f\v";
  const char32_t code = next();
  const auto letter = code < 128 ? static_cast<char>(code) : '\0';
  if (const size_t at = kLetters.find(letter); at != std::string_view::npos) return static_cast<char32_t>(kCodes[at]);
  const bool is_class = std::string_view("sSdDpP").find(letter) != std::string_view::npos;
  const bool is_punctuation = code > 0x20 && code < 0x7f && category_of(code) >= GeneralCategory::kPc;
  if (is_punctuation) return code;
  if (!is_class) refuse(fmt::format("the escape \\{}", to_utf8({&code, 1})));
  if (ignores_case_) refuse("a class in a group (?i:...)");
  const bool is_negated = letter < 'a';
  if (letter == 's' || letter == 'S') {
    to.add_white_space(is_negated);
  } else if (letter == 'd' || letter == 'D') {
    const CategorySet digits = *category_set("Nd");
    to.add_categories(is_negated ? kAllCategories & ~digits : digits);
  } else {
    property(to, is_negated);
  }
  return std::nullopt;
}

void Parser::set_item(CodeSet& to) {
  const auto end_point = [&]() -> std::optional<char32_t> {
    if (is_at("[") || is_at("&&")) refuse("a set in a set");
    return skip("\\") ? escape(to) : std::optional(next());
  };
  const auto first = end_point();
  const bool is_range = first && is_at("-") && !is_at("-]");
  if (!first) return;
  if (!is_range) return literal(to, *first);
  skip("-");
  const auto last = end_point();
  if (!last || *last < *first) refuse("a range of a set that does not ascend");
  if (ignores_case_) refuse("a range in a group (?i:...)");
  to.add_range(*first, *last);
}

Node Parser::set() {
  CodeSet all;
  const bool is_negated = skip("^");
  if (is_at("]")) refuse("an empty set");
  if (is_negated && ignores_case_) refuse("a negated set in a group (?i:...)");
  while (!skip("]")) set_item(all);
  if (is_negated) all.negate();
  return add_set(std::move(all));
}

/// Writes the steps of a tree.
class Writer {
 public:
  explicit Writer(std::vector<PatternStep>& steps) : steps_(steps) {}

  void write(const Node& node) {
    switch (node.kind) {
      case Node::Kind::kSet: add({.kind = Kind::kOne, .set = node.set}); break;
      case Node::Kind::kSequence:
        for (const Node& part : node.parts) write(part);
        break;
      case Node::Kind::kChoice: write_choice(node); break;
      case Node::Kind::kRepeat: write_repeat(node); break;
      case Node::Kind::kAhead: write_look(node, Kind::kAhead); break;
      case Node::Kind::kNotAhead: write_look(node, Kind::kNotAhead); break;
    }
  }
  void end() { add({.kind = Kind::kEnd}); }

 private:
  using Kind = PatternStep::Kind;

  uint32_t count() const { return static_cast<uint32_t>(steps_.size()); }
  uint32_t add(const PatternStep& step) {
    steps_.push_back(step);
    return count() - 1;
  }
  void write_choice(const Node& node) {
    std::vector<uint32_t> jumps;
    for (size_t i = 0; i + 1 < node.parts.size(); ++i) {
      const uint32_t fork = add({.kind = Kind::kFork});
      write(node.parts[i]);
      jumps.push_back(add({.kind = Kind::kJump}));
      steps_[fork].target = count();
    }
    write(node.parts.back());
    for (const uint32_t jump : jumps) steps_[jump].target = count();
  }
  void write_repeat(const Node& node) {
    const Node& part = node.parts.front();
    if (part.kind == Node::Kind::kSet) {
      add({.kind = Kind::kRepeat,
           .keeps_all = node.keeps_all,
           .set = part.set,
           .least = node.least,
           .most = node.most});
      return;
    }
    const uint32_t begin = count();
    if (node.least == 1) write(part);
    const uint32_t fork = add({.kind = Kind::kFork});
    if (node.least == 0) write(part);
    if (node.most == kUnlimited) add({.kind = Kind::kJump, .target = begin});
    steps_[fork].target = count();
  }
  void write_look(const Node& node, Kind kind) {
    const uint32_t look = add({.kind = kind});
    write(node.parts.front());
    end();
    steps_[look].target = count();
  }

  std::vector<PatternStep>& steps_;
};

}  // namespace

ParsedPattern parse_pattern(std::string_view pattern) {
  ParsedPattern parsed;
  const Node tree = Parser(pattern, parsed.sets).parse();
  if (can_be_empty(tree)) refuse("a pattern that matches the empty string");
  Writer writer(parsed.steps);
  writer.write(tree);
  writer.end();
  return parsed;
}

}  // namespace aliquot
