#include "sharding/state_names.h"

#include <algorithm>
#include <fmt/format.h>

namespace aliquot {
namespace {

/// Returns the length in bytes of the first character of `text`, or 0 if it is not valid UTF-8.
size_t utf8_length(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](size_t i) { return (at(i) & 0xc0u) == 0x80u; };
  if (at(0) < 0x80) return 1;
  if (at(0) >= 0xc2 && at(0) < 0xe0) return follows(1) ? 2 : 0;
  if ((at(0) & 0xf0u) == 0xe0) {
    const bool overlong = at(0) == 0xe0 && at(1) < 0xa0, surrogate = at(0) == 0xed && at(1) >= 0xa0;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (at(0) >= 0xf0 && at(0) < 0xf5) {
    const bool overlong = at(0) == 0xf0 && at(1) < 0x90, beyond = at(0) == 0xf4 && at(1) >= 0x90;
    return follows(1) && follows(2) && follows(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

bool is_plain_text(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0 || text[0] == '\0') return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string path_defect(std::string_view path) {
  if (path.empty()) return "is empty";
  if (path.size() > kPathBytesLimit) return fmt::format("is longer than {} bytes", kPathBytesLimit);
  if (!is_plain_text(path)) return "is not UTF-8";
  if (std::any_of(path.begin(), path.end(), is_control)) return "contains a control character";
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    if (component.empty() || component == "." || component == "..") return "has an empty, \".\" or \"..\" part";
    begin = end + 1;
  }
  return {};
}

std::string printable(std::string_view text) {
  std::string clean(text.substr(0, kPathBytesLimit));
  for (char& c : clean) {
    if (is_control(c) || static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return clean;
}

}  // namespace aliquot
