#include "apps/ranks_text.h"

namespace aliquot {

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr size_t kMinRun = 3;  // "0 to 1" is no shorter than "0 and 1"
  std::vector<std::string> parts;
  for (size_t first = 0; first < ranks.size();) {
    size_t end = first + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - first < kMinRun) end = first + 1;
    parts.push_back(std::to_string(ranks[first]));
    if (end - first > 1) parts.back() += " to " + std::to_string(ranks[end - 1]);
    first = end;
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " and " : ", ";
    text += parts[i];
  }
  return text;
}

}  // namespace aliquot
