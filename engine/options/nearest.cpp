#include "engine/options/nearest.h"

#include <algorithm>

namespace aliquot {

int edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::vector<int>> cost(from.size() + 1, std::vector<int>(to.size() + 1));
  for (size_t i = 0; i <= from.size(); ++i) {
    for (size_t j = 0; j <= to.size(); ++j) {
      int& here = cost[i][j];
      if (i == 0 || j == 0) {
        here = static_cast<int>(i + j);
        continue;
      }
      here =
          std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
        here = std::min(here, cost[i - 2][j - 2] + 1);
    }
  }
  return cost[from.size()][to.size()];
}

std::vector<std::string> nearest_names(std::string_view word, const std::vector<std::string>& names) {
  if (word.size() < 2) return {};  // all names are equally near to a single letter
  std::vector<std::pair<int, std::string>> near;
  const int limit = std::max(2, static_cast<int>(word.size()) / 3);
  for (const std::string& name : names) {
    int distance = edit_distance(word, name);
    // A prefix of a name counts as nearly equal.
    if (word.size() >= 3 && name.starts_with(word)) distance = std::min(distance, 1);
    if (distance <= limit) near.emplace_back(distance, name);
  }
  std::ranges::stable_sort(near, {}, &std::pair<int, std::string>::first);
  std::vector<std::string> result;
  for (const auto& [distance, name] : near) {
    if (result.size() < 3 && distance <= near.front().first + 1) result.push_back(name);
  }
  return result;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names, std::string_view prefix) {
  const std::vector<std::string> near = nearest_names(word, names);
  std::string text;
  for (size_t i = 0; i < near.size(); ++i) {
    text += i == 0 ? " Did you mean " : i + 1 == near.size() ? " or " : ", ";
    text.append(prefix).append(near[i]);
  }
  return text.empty() ? text : text + "?";
}

}  // namespace aliquot
