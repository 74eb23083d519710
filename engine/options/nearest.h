#pragma once
// "Did you mean ...?"

#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// Letters to insert, drop, change or swap with a neighbour to turn one word into the other.
int edit_distance(std::string_view from, std::string_view to);

/// The names nearest to `word`, at most three, the nearest first; none that is too far off to be meant.
std::vector<std::string> nearest_names(std::string_view word, const std::vector<std::string>& names);

/// " Did you mean --zero-stage or --steps?", each name with `prefix`; empty when nothing is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names, std::string_view prefix);

}  // namespace aliquot
