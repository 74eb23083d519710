#pragma once
// Divides the sums over tree nodes of the norm between the thread blocks of a GPU.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/elementwise/kernels.h"

namespace aliquot {

/// The most leaves of a run that one thread block should sum, a power of two. It is the number of leaves that a thread
/// block of the CUDA kernel sum_runs loads at the same time.
inline constexpr int64_t kMaxRunLeaves = 2048;

/// Runs for two calls of Kernels::sum_runs(), in the order of the calls.
struct SplitRuns {
  std::vector<LeafRun> runs;
  int64_t first_call_count = 0;  // the first call has the first runs, and the second call the rest
  int64_t partial_count = 0;     // number of partial sums
};

/// Splits each run of more than kMaxRunLeaves leaves. The first call computes partial sums of kMaxRunLeaves leaves
/// each, and of the remaining leaves. They are stored from index `first_partial` on, and are the leaves of the second
/// call. The sums have the same bits as those of complete runs, because the partial sums belong to subtrees.
SplitRuns split_runs(std::span<const LeafRun> runs, int64_t first_partial);

}  // namespace aliquot
