// Tests of bands and page layouts against comparisons position by position.
#include "checkpoint/file/bands.h"

#include <gtest/gtest.h>
#include <random>

#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/file/page_layout.h"

namespace aliquot {
namespace {

using Random = std::mt19937;

int64_t between(Random& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
}

/// Returns extents in [0, end) with strides that have common multiples of various sizes.
std::vector<StridedExtent> random_extents(Random& random, int64_t end) {
  std::vector<StridedExtent> held;
  for (int64_t i = between(random, 0, 8); i > 0; --i) {
    StridedExtent extent;
    extent.stride = between(random, 1, 24) / 4 * 4 + between(random, 1, 2);
    extent.run = between(random, 1, extent.stride);
    extent.begin = between(random, 0, end - extent.run);
    extent.run_count = between(random, 1, (end - extent.begin - extent.run) / extent.stride + 1);
    extent.rank = static_cast<int32_t>(between(random, 0, 3));
    extent.source = static_cast<int32_t>(i);
    held.push_back(extent);
  }
  return held;
}

bool has(const StridedExtent& extent, int64_t at) {
  for (int64_t i = 0; i < extent.run_count; ++i) {
    const int64_t run = extent.begin + i * extent.stride;
    if (at >= run && at < run + extent.run) return true;
  }
  return false;
}

/// The sources of the extents that have position `at`, in ascending order.
std::vector<int32_t> sources_at(const std::vector<StridedExtent>& held, int64_t at) {
  std::vector<int32_t> sources;
  for (const StridedExtent& extent : held) {
    if (has(extent, at)) sources.push_back(extent.source);
  }
  std::sort(sources.begin(), sources.end());
  return sources;
}

std::vector<int32_t> sources_at(const Bands& bands, int64_t at) {
  std::vector<int32_t> sources;
  for (const Band& band : bands.bands()) {
    if (at < band.begin || at >= band.end) continue;
    for (const FileExtent& extent : bands.period(band)) {
      const int64_t first = band.begin + (at - band.begin) % band.period;
      if (first >= extent.begin && first < extent.end) sources.push_back(extent.source);
    }
  }
  std::sort(sources.begin(), sources.end());
  return sources;
}

TEST(Bands, HaveTheOwnersOfEachPosition) {
  constexpr int64_t kEnd = 300;
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const auto held = random_extents(random, kEnd);
    const Bands bands(held);
    for (int64_t at = 0; at < kEnd; ++at) ASSERT_EQ(sources_at(bands, at), sources_at(held, at)) << at;
  }
}

TEST(Bands, GiveEachPositionOneOwnerOnceCompleted) {
  constexpr int64_t kEnd = 300;
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    const auto held = random_extents(random, kEnd);
    Bands bands(held);
    bands.complete(kEnd, [](int64_t begin, int64_t end) { return std::vector<FileExtent>{{begin, end, 9, -9}}; });
    for (int k = 0; k < 10; ++k) {
      const int64_t from = between(random, 0, kEnd), to = between(random, from, kEnd);
      int64_t next = from;
      bands.for_each(from, to, [&](const FileExtent& extent) {
        ASSERT_EQ(extent.begin, next);
        ASSERT_LT(extent.begin, extent.end);
        next = extent.end;
        for (int64_t at = extent.begin; at < extent.end; ++at) {
          const auto owners = sources_at(held, at);
          if (owners.empty()) {
            EXPECT_LT(extent.source, 0);
          } else {
            EXPECT_TRUE(std::ranges::binary_search(owners, extent.source));
            EXPECT_EQ(extent.rank, std::ranges::find(held, extent.source, &StridedExtent::source)->rank);
          }
        }
      });
      EXPECT_EQ(next, to);
    }
  }
}

/// The first of two equal extents has all positions.
TEST(Bands, PreferTheFirstOwner) {
  const std::vector<StridedExtent> held = {{0, 2, 4, 50, 3, 0}, {0, 2, 4, 50, 1, 1}, {2, 2, 4, 50, 2, 2}};
  Bands bands(held);
  bands.complete(200, [](int64_t, int64_t) { return std::vector<FileExtent>{}; });
  bands.for_each(0, 200, [](const FileExtent& extent) { EXPECT_EQ(extent.source, extent.begin % 4 == 0 ? 0 : 2); });
}

/// 8 ranks have the columns of a matrix, with rows of `row` bytes. Each rank has a contiguous part before and after.
std::vector<StridedExtent> columns(int64_t begin, int64_t row, int64_t rows, const std::vector<int64_t>& bounds) {
  std::vector<StridedExtent> held = {{0, begin, begin, 1, 0, 0}};
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
    held.push_back({begin + bounds[i], bounds[i + 1] - bounds[i], row, rows, static_cast<int32_t>(i), 1});
  return held;
}

void expect_layout(const std::vector<StridedExtent>& held, bool has_windows) {
  int64_t end = 0;
  for (const StridedExtent& extent : held) end = std::max(end, extent.end());
  const int64_t file_bytes = (end + kPageBytes - 1) / kPageBytes * kPageBytes + 3 * kPageBytes;
  Bands owners(held);
  owners.complete(file_bytes, [](int64_t begin, int64_t last) { return std::vector<FileExtent>{{begin, last, 5, 0}}; });
  std::vector<FileExtent> all;
  owners.for_each(0, file_bytes, [&](const FileExtent& extent) { all.push_back(extent); });
  const PagePlan expected = plan_pages(all, kPageBytes);
  std::vector<int32_t> writers;  // of each page
  for (const PageRun& run : expected.runs)
    writers.insert(writers.end(), static_cast<std::size_t>((run.end - run.begin) / kPageBytes), run.rank);
  const PageLayout layout(owners, file_bytes);
  std::vector<int32_t> found;
  std::vector<Fragment> fragments = layout.plan().fragments;
  bool found_windows = false;
  const auto add = [&](const PageRun& run) {
    ASSERT_EQ(run.begin, std::ssize(found) * kPageBytes);
    found.insert(found.end(), static_cast<std::size_t>((run.end - run.begin) / kPageBytes), run.rank);
  };
  for (const PageRun& run : layout.plan().runs) {
    if (run.rank != PageLayout::kManyRanks) {
      add(run);
      continue;
    }
    found_windows = true;
    const PagePlan window = layout.plan_window(run);
    for (const PageRun& each : window.runs) add(each);
    fragments.insert(fragments.end(), window.fragments.begin(), window.fragments.end());
    for (int32_t rank = 0; rank < 10; ++rank) {
      if (layout.needs_plan(run, rank)) continue;
      EXPECT_TRUE(window.fragments.empty());
      for (const PageRun& each : window.runs) EXPECT_NE(each.rank, rank);
    }
  }
  EXPECT_EQ(found_windows, has_windows);
  EXPECT_EQ(found, writers);
  const auto bytes_between = [](const std::vector<Fragment>& list) {
    std::vector<std::array<int64_t, 4>> parts;
    for (const Fragment& each : list) {
      // A band boundary may divide a fragment.
      if (!parts.empty() && parts.back()[1] == each.begin && parts.back()[2] == each.from &&
          parts.back()[3] == each.to) {
        parts.back()[1] = each.end;
      } else {
        parts.push_back({each.begin, each.end, each.from, each.to});
      }
    }
    return parts;
  };
  std::ranges::sort(fragments, {}, &Fragment::begin);
  EXPECT_EQ(bytes_between(fragments), bytes_between(expected.fragments));
}

TEST(PageLayout, AssignsPagesLikeAPlanOfAllExtents) {
  expect_layout(columns(0, 4 * 4096, 500, {0, 4096, 2 * 4096, 4 * 4096}), true);
  expect_layout(columns(4096, 4 * 4096, 2000, {0, 4096, 2 * 4096, 4 * 4096}), true);
  // A band begins with a row on a page boundary, and only its first row is aligned.
  constexpr int64_t kRow = 3 * 4096 + 100;
  std::vector<StridedExtent> held = columns(4096, kRow, 2048, {0, 4096, 2 * 4096, kRow});
  held[1].run_count = 1024;
  held.push_back({4096 + 1024 * kRow, 4096, kRow, 1024, 0, 2});
  expect_layout(held, true);
  expect_layout(columns(5000, 3000, 3000, {0, 700, 701, 2048, 3000}), true);
  expect_layout(columns(4096, 8192, 4000, {0, 2048, 4096, 6144, 8192}), true);
  expect_layout(columns(4096, 8 << 20, 9, {0, 4 << 20, 8 << 20}), false);
  expect_layout(columns(777, 30, 10, {0, 10, 20, 30}), false);
  Random random(3);
  for (int i = 0; i < 40; ++i) {
    const int64_t row = between(random, 5, 9000);
    std::vector<int64_t> bounds = {0, row};
    for (int k = 0; k < 3; ++k) bounds.push_back(between(random, 1, row - 1));
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    expect_layout(columns(between(random, 1, 9000), row, between(random, 100, 1000), bounds), true);
  }
}

/// The number of entries does not depend on the number of rows.
TEST(PageLayout, HasFewEntriesForAColumnSplitMatrix) {
  constexpr int64_t kSide = 8192;
  std::vector<int64_t> bounds;
  for (int64_t i = 0; i <= 8; ++i) bounds.push_back(i * kSide / 8 * 4);
  Bands owners(columns(4096, kSide * 4, kSide, bounds));
  owners.complete(4096 + kSide * kSide * 4, [](int64_t, int64_t) { return std::vector<FileExtent>{}; });
  EXPECT_LE(owners.bands().size(), 20u);
  const PageLayout layout(owners, 4096 + kSide * kSide * 4);
  EXPECT_LE(layout.plan().runs.size(), 257u + 17u);  // windows of 1 MiB, and the first and the last row
  EXPECT_TRUE(layout.plan().fragments.empty());
}

}  // namespace
}  // namespace aliquot
