#pragma once
// Assignment of the pages of a file to the ranks that write them.

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/file/bands.h"

namespace aliquot {

/// Bytes [begin, end) that rank `from` holds in a page that rank `to` writes.
struct Fragment {
  int64_t begin = 0, end = 0;
  int32_t from = 0, to = 0;
};

/// Bytes [begin, end), which are whole pages, written by `rank`.
struct PageRun {
  int64_t begin = 0, end = 0;
  int32_t rank = 0;
};

/// The rank that holds the first byte of a page writes the page; the other ranks send it their bytes of that page. With
/// one writer for each page, pages can be written with direct I/O.
struct PagePlan {
  std::vector<PageRun> runs;        // sorted by offset; the runs of all ranks cover each page of the file once
  std::vector<Fragment> fragments;  // sorted by offset
};

/// `extents` must be sorted, cover each byte once from byte `begin`, and end at a multiple of `page_bytes`. Otherwise
/// the function throws FaultError. `begin` must be a multiple of `page_bytes`. Deterministic: the same extents give the
/// same plan on every rank.
PagePlan plan_pages(std::span<const FileExtent> extents, int64_t page_bytes, int64_t begin = 0);

}  // namespace aliquot
