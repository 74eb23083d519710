#include "apps/data/loss_ranges.h"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

#include "apps/models/layers/loss.h"
#include "kernels/system/error.h"

namespace aliquot {

LossRanges::LossRanges(const InputFile& file, const RangeLayout& layout, int64_t token_count,
                       const std::filesystem::path& path)
    : file_(file), layout_(layout) {
  const auto refuse = [&path](const std::string& why) { throw UsageError(fmt::format("{}: {}.", path.string(), why)); };
  const int64_t available = (file.size_bytes() - layout.offset_bytes) / kRangeBytes;
  if (layout.offset_bytes < 0 || layout.offset_bytes > file.size_bytes() || layout.count < 0 ||
      layout.count > available)
    refuse("the file is shorter than its header states: it is truncated");
  if (layout.count < 1) refuse("the dataset 'loss_ranges' is empty: no token would count in the loss");
  std::vector<Range> part;
  int64_t end = 0;
  for (int64_t i = 0; i < layout.count; ++i) {
    if (i % kPart == 0) {
      part.resize(static_cast<size_t>(std::min(kPart, layout.count - i)));
      file.read(layout.offset_bytes + i * kRangeBytes, part.data(), static_cast<int64_t>(part.size()) * kRangeBytes);
    }
    const Range range = part[static_cast<size_t>(i % kPart)];
    if (range.begin < end || range.end <= range.begin || range.end > token_count)
      refuse(
          fmt::format("range {} of the dataset 'loss_ranges' is [{}, {}): expected ranges in ascending order, with at "
                      "least one token each, within the {} tokens",
                      i, range.begin, range.end, token_count));
    end = range.end;
  }
}

LossRanges::Range LossRanges::at(int64_t index) const {
  Range range;
  file_.read(layout_.offset_bytes + index * kRangeBytes, &range, kRangeBytes);
  return range;
}

template <typename Visit>
void LossRanges::for_each_within(int64_t first, int64_t end, Visit&& visit) const {
  int64_t low = 0, high = layout_.count;  // finds the first range that ends after `first`
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (at(middle).end > first) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  for (int64_t i = low; i < layout_.count; ++i) {
    const Range range = at(i);
    if (range.begin >= end) break;
    visit(std::max(first, range.begin), std::min(end, range.end));
  }
}

int64_t LossRanges::count_tokens(int64_t first, int64_t count) const {
  int64_t found = 0;
  for_each_within(first, first + count, [&found](int64_t begin, int64_t end) { found += end - begin; });
  return found;
}

void LossRanges::ignore_others(int64_t first, std::span<int32_t> targets) const {
  const int64_t last = first + static_cast<int64_t>(targets.size());
  const auto ignore = [&](int64_t begin, int64_t end) {
    std::ranges::fill(targets.subspan(static_cast<size_t>(begin - first), static_cast<size_t>(end - begin)),
                      kIgnoredTarget);
  };
  int64_t done = first;
  for_each_within(first, last, [&](int64_t begin, int64_t end) {
    ignore(done, begin);
    done = end;
  });
  ignore(done, last);
}

}  // namespace aliquot
