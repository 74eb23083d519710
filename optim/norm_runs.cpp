#include "optim/norm_runs.h"

#include <algorithm>

namespace aliquot {

SplitRuns split_runs(std::span<const LeafRun> runs, int64_t first_partial) {
  SplitRuns split;
  std::vector<LeafRun> second_call;
  for (const LeafRun& run : runs) {
    if (run.count <= kMaxRunLeaves) {
      split.runs.push_back(run);
      continue;
    }
    const int64_t begin = first_partial + split.partial_count;
    for (int64_t done = 0; done < run.count; done += kMaxRunLeaves) {
      const int64_t partial = first_partial + split.partial_count++;
      split.runs.push_back({run.first + done, std::min(kMaxRunLeaves, run.count - done), partial});
    }
    second_call.push_back({begin, first_partial + split.partial_count - begin, run.sum});
  }
  split.first_call_count = std::ssize(split.runs);
  split.runs.insert(split.runs.end(), second_call.begin(), second_call.end());
  return split;
}

}  // namespace aliquot
