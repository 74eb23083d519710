#pragma once
// How often a rank that waits for others checks that they can still arrive.

#include <algorithm>
#include <cstdint>

namespace aliquot {

/// Returns the time between two checks in a group of `rank_count` ranks, 20 ms for up to 64 ranks. A check reads the
/// state of all ranks. With the same time for every group, checks of thousands of ranks on one node would take all of
/// its cores.
constexpr int64_t poll_nanoseconds(int rank_count) {
  constexpr int64_t kNanoseconds = 20'000'000, kRanks = 64;
  return kNanoseconds * std::max<int64_t>(kRanks, rank_count) / kRanks;
}

}  // namespace aliquot
