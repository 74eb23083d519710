#pragma once
// What ranks tell each other between steps, of any length.

#include <string>
#include <string_view>
#include <vector>

#include "sharding/communicator.h"
#include "sharding/state.h"

namespace aliquot {

/// Every rank's bytes, in rank order, at most about `part_bytes` of them under way at once: gather_objects() is for small
/// things. Collective; blocks. Throws UsageError on all ranks, naming two, where `what` is not the same on all.
std::vector<std::string> gather_in_parts(Communicator& ranks, std::string_view what, std::string_view own,
                                         int64_t part_bytes = kStagingChunkBytes);

}  // namespace aliquot
