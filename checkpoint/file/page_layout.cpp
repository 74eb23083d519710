#include "checkpoint/file/page_layout.h"

#include "checkpoint/file/hdf5_structure.h"

namespace aliquot {
namespace {

// A band with at most this many extents, or with extents of at least this mean size, needs no windows.
constexpr int64_t kFewExtents = 64, kLargeExtentBytes = 1 << 20;

bool needs_windows(const Band& band) {
  const int64_t periods = (band.end - band.begin + band.period - 1) / band.period;
  return periods > 1 && periods * band.extent_count > kFewExtents &&
         band.period / band.extent_count < kLargeExtentBytes;
}

bool is_aligned(int64_t at) { return at % kPageBytes == 0; }

/// Returns the pages that have bytes of bands which need windows, as disjoint ranges that do not touch.
std::vector<FileExtent> pages_in_windows(const Bands& owners) {
  std::vector<FileExtent> ranges;
  for (const Band& band : owners.bands()) {
    if (!needs_windows(band)) continue;
    const int64_t begin = band.begin / kPageBytes * kPageBytes;
    const int64_t end = (band.end + kPageBytes - 1) / kPageBytes * kPageBytes;
    if (!ranges.empty() && begin <= ranges.back().end) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end, PageLayout::kManyRanks, 0});
    }
  }
  return ranges;
}

}  // namespace

PageLayout::PageLayout(Bands owners, int64_t file_bytes) : owners_(std::move(owners)) {
  std::vector<FileExtent> extents;
  const auto add = [&](const FileExtent& extent) { extents.push_back(extent); };
  int64_t end = 0;
  for (const FileExtent& pages : pages_in_windows(owners_)) {
    owners_.for_each(end, pages.begin, add);
    add(pages);
    end = pages.end;
  }
  owners_.for_each(end, file_bytes, add);
  PagePlan plan = plan_pages(extents, kPageBytes);
  plan_.fragments = std::move(plan.fragments);
  for (const PageRun& run : plan.runs) {
    if (run.rank == kManyRanks) {
      add_windows(run.begin, run.end);
    } else {
      plan_.runs.push_back(run);
    }
  }
}

void PageLayout::add_windows(int64_t begin, int64_t end) {
  for (const TilePart& part : split_at_tiles(begin, end)) {
    const int64_t part_end = part.begin + part.count;
    shared_parts_.push_back({part.begin, part.count, 0, part.count});
    for (int64_t at = part.begin; at < part_end; at += kWindowBytes)
      plan_.runs.push_back({at, std::min(part_end, at + kWindowBytes), kManyRanks});
  }
}

TilePart PageLayout::shared_part(const PageRun& window) const {
  return *std::prev(std::upper_bound(shared_parts_.begin(), shared_parts_.end(), window.begin,
                                     [](int64_t at, const TilePart& part) { return at < part.begin; }));
}

PagePlan PageLayout::plan_window(const PageRun& window) const {
  std::vector<FileExtent> extents;
  owners_.for_each(window.begin, window.end, [&](const FileExtent& extent) { extents.push_back(extent); });
  return plan_pages(extents, kPageBytes, window.begin);
}

bool PageLayout::needs_plan(const PageRun& window, int32_t rank) const {
  const auto bands = owners_.bands();
  auto band = std::upper_bound(bands.begin(), bands.end(), window.begin,
                               [](int64_t at, const Band& each) { return at < each.end; });
  for (; band != bands.end() && band->begin < window.end; ++band) {
    if (!is_aligned(band->period)) return true;
    for (const FileExtent& extent : owners_.period(*band)) {
      if (extent.rank == rank || !is_aligned(extent.begin)) return true;
    }
  }
  return false;
}

}  // namespace aliquot
