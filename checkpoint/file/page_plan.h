#pragma once
// Who writes which pages of a file.

#include <cstdint>
#include <span>
#include <vector>

namespace aliquot {

/// Bytes [begin, end) of the file, held by a rank. `source` says where, to the rank itself.
struct FileExtent {
  int64_t begin = 0, end = 0;
  int32_t rank = 0;
  int32_t source = 0;
};

/// Bytes that `from` holds in a page that `to` writes.
struct Fragment {
  int64_t begin = 0, end = 0;
  int32_t from = 0, to = 0;
};

/// Whole pages [begin, end) that one rank writes.
struct PageRun {
  int64_t begin = 0, end = 0;
  int32_t rank = 0;
};

/// Whoever holds a page's first byte writes the page; its neighbours send theirs. So a page has one writer, and can be
/// written past the page cache.
struct PagePlan {
  std::vector<PageRun> runs;        // in order; over all ranks they tile the file
  std::vector<Fragment> fragments;  // in order
};

/// `extents` tile the file from byte 0 to its end, which is a multiple of the page, exactly once, in order.
/// Pure: the same on every rank. Throws FaultError when they do not.
PagePlan plan_pages(std::span<const FileExtent> extents, int64_t page_bytes);

}  // namespace aliquot
