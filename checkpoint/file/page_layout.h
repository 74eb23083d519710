#pragma once
// The pages of a file that each rank writes or reads.

#include <cstdint>
#include <vector>

#include "checkpoint/file/bands.h"
#include "checkpoint/file/page_plan.h"
#include "checkpoint/file/tile_parts.h"

namespace aliquot {

/// Assigns the pages of a file to ranks, as plan_pages() does. Pages with many small extents are not listed one by one:
/// they form windows, which are planned when they are needed. The memory therefore does not depend on the number of
/// extents. Deterministic: the same owners give the same plans on every rank.
class PageLayout {
 public:
  static constexpr int32_t kManyRanks = -1;
  static constexpr int64_t kWindowBytes = 1 << 20;  // ranks exchange at most the bytes of one window at a time

  /// Each position in [0, file_bytes) must have exactly one owner.
  PageLayout(Bands owners, int64_t file_bytes);

  const Bands& owners() const { return owners_; }
  /// The runs of kManyRanks are the windows: at most kWindowBytes of whole pages within one tile. Fragments are those
  /// outside windows.
  const PagePlan& plan() const { return plan_; }
  /// Returns the assignment of the pages of a window.
  PagePlan plan_window(const PageRun& window) const;
  /// Returns the part of a tile that consists of this window and those adjacent to it. Ranks have checksums of such
  /// parts. `missing_bytes` is its size.
  TilePart shared_part(const PageRun& window) const;
  /// Returns false if all ranks know that the window has no fragments, and no page for `rank`.
  bool needs_plan(const PageRun& window, int32_t rank) const;

 private:
  void add_windows(int64_t begin, int64_t end);

  Bands owners_;
  PagePlan plan_;
  std::vector<TilePart> shared_parts_;  // sorted by offset
};

}  // namespace aliquot
