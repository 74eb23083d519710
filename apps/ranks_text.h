#pragma once
// Formats lists of ranks for messages.

#include <string>
#include <vector>

namespace aliquot {

/// Returns "rank 1", "ranks 0 and 2", "ranks 0, 3 and 8 to 15", in the order given.
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace aliquot
