#include "checkpoint/file/page_plan.h"

#include <algorithm>

#include "kernels/system/error.h"

namespace aliquot {

PagePlan plan_pages(std::span<const FileExtent> extents, int64_t page_bytes, int64_t begin) {
  PagePlan plan;
  int64_t end = begin;        // end of the extents processed so far
  int64_t pages_end = begin;  // end of the pages that have a writer
  for (const FileExtent& extent : extents) {
    if (extent.begin != end || extent.end <= extent.begin)
      throw FaultError(
          "the extents of a checkpoint file do not cover it exactly once: one is empty, overlaps another or leaves a "
          "gap");
    end = extent.end;
    if (extent.begin < pages_end && plan.runs.back().rank != extent.rank) {
      plan.fragments.push_back({extent.begin, std::min(extent.end, pages_end), extent.rank, plan.runs.back().rank});
    }
    if (extent.end <= pages_end) continue;
    const int64_t first = pages_end;
    pages_end = (extent.end + page_bytes - 1) / page_bytes * page_bytes;
    if (!plan.runs.empty() && plan.runs.back().rank == extent.rank) {
      plan.runs.back().end = pages_end;
    } else {
      plan.runs.push_back({first, pages_end, extent.rank});
    }
  }
  if (end != pages_end) throw FaultError("the extents of a checkpoint file do not end on a page boundary");
  return plan;
}

}  // namespace aliquot
