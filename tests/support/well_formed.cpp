#include "tests/support/well_formed.h"

#include <cctype>
#include <set>
#include <stdexcept>
#include <vector>

namespace aliquot::test {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  void read() {
    while (at_ < text_.size()) {
      if (text_[at_] == '<') {
        tag();
      } else {
        if (open_.empty() && !std::isspace(static_cast<unsigned char>(text_[at_]))) fail("text outside any element");
        character();
      }
    }
    if (!open_.empty()) fail("unclosed element " + open_.back());
    if (elements_ == 0) fail("no element");
  }

 private:
  [[noreturn]] void fail(const std::string& error) const {
    throw std::runtime_error(error + " at byte " + std::to_string(at_) + ": " +
                             std::string(text_.substr(at_ < 30 ? 0 : at_ - 30, 60)));
  }
  bool accept(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void skip_past(std::string_view end) {
    const size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) fail("no " + std::string(end));
    at_ = found + end.size();
  }
  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  std::string name() {
    const size_t from = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-' ||
                                  text_[at_] == ':' || text_[at_] == '_'))
      ++at_;
    if (at_ == from) fail("a name is missing");
    return std::string(text_.substr(from, at_ - from));
  }
  void character() {
    if (text_[at_] == '&') {
      for (const std::string_view entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"}) {
        if (accept(entity)) return;
      }
      if (!text_.substr(at_).starts_with("&#")) fail("a bare ampersand");
    }
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte < 0x20 && byte != '\n' && byte != '\t') fail("a control character");
    ++at_;
  }
  void attributes() {
    std::set<std::string> seen;
    for (skip_blanks(); at_ < text_.size() && text_[at_] != '>' && text_[at_] != '/'; skip_blanks()) {
      const std::string attribute = name();
      if (!seen.insert(attribute).second) fail("duplicate attribute " + attribute);
      if (!accept("=\"")) fail("no value for attribute " + attribute);
      while (at_ < text_.size() && text_[at_] != '"') {
        if (text_[at_] == '<') fail("< in an attribute");
        character();
      }
      if (!accept("\"")) fail("no closing quote");
    }
  }
  void tag() {
    if (accept("<!--")) return skip_past("-->");
    if (accept("<!DOCTYPE") || accept("<?xml")) return skip_past(">");
    if (accept("</")) {
      const std::string closed = name();
      if (open_.empty() || open_.back() != closed) fail("no open element for </" + closed + ">");
      open_.pop_back();
      if (!accept(">")) fail("no >");
      return;
    }
    ++at_;
    if (open_.empty() && elements_ > 0) fail("a second root element");
    ++elements_;
    open_.push_back(name());
    attributes();
    if (accept("/>")) {
      open_.pop_back();
    } else if (!accept(">")) {
      fail("no >");
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int elements_ = 0;
  std::vector<std::string> open_;
};

}  // namespace

std::string xml_problem(std::string_view text) {
  try {
    Reader(text).read();
  } catch (const std::runtime_error& problem) {
    return problem.what();
  }
  return {};
}

}  // namespace aliquot::test
