#pragma once
// Suggestions for misspelt names.

#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// The number of letters to insert, remove, replace or swap with a neighbour to get from one word to the other.
int edit_distance(std::string_view from, std::string_view to);

/// Returns at most three names similar to `word`, the most similar first.
std::vector<std::string> nearest_names(std::string_view word, const std::vector<std::string>& names);

/// Returns " Did you mean --zero-stage or --steps?" with `prefix` before each name. Returns "" if no name is similar.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names, std::string_view prefix);

}  // namespace aliquot
