#include "checkpoint/file/bands.h"

#include <numeric>

namespace aliquot {
namespace {

/// Returns the period of a band of `length` positions. Each extent that has positions before and after the band repeats
/// with its stride inside the band, so all of them repeat with a common multiple of the strides.
int64_t common_period(std::span<const StridedExtent* const> active, int64_t length) {
  int64_t period = 1;
  for (const StridedExtent* extent : active) {
    if (extent->run_count == 1) continue;
    const int64_t factor = extent->stride / std::gcd(period, extent->stride);
    if (factor >= (length + period - 1) / period) return length;
    period *= factor;
  }
  return period == 1 ? length : period;
}

/// Adds the parts of the runs that are in [begin, end).
void add_runs(const StridedExtent& held, int64_t begin, int64_t end, std::vector<FileExtent>& extents) {
  const int64_t stride = std::max<int64_t>(held.stride, 1);
  for (int64_t i = held.run_count == 1 ? 0 : (begin - held.begin) / stride; i < held.run_count; ++i) {
    const int64_t run = held.begin + i * stride;
    if (run >= end) break;
    const FileExtent part{std::max(run, begin), std::min(run + held.run, end), held.rank, held.source};
    if (part.begin < part.end) extents.push_back(part);
  }
}

}  // namespace

Bands::Bands(std::span<const StridedExtent> held) {
  std::vector<const StridedExtent*> sorted;
  std::vector<int64_t> bounds;
  for (const StridedExtent& extent : held) {
    sorted.push_back(&extent);
    bounds.push_back(extent.begin);
    bounds.push_back(extent.end());
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  // No extent begins or ends inside a band, so the same extents are active in the whole band.
  std::vector<const StridedExtent*> active;
  auto next = sorted.begin();
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    std::erase_if(active, [&](const StridedExtent* extent) { return extent->end() <= bounds[i]; });
    for (; next != sorted.end() && (*next)->begin == bounds[i]; ++next) active.push_back(*next);
    if (!active.empty()) add_band(bounds[i], bounds[i + 1], active);
  }
}

void Bands::add_band(int64_t begin, int64_t end, std::span<const StridedExtent* const> active) {
  Band band{begin, end, common_period(active, end - begin), static_cast<int64_t>(extents_.size()), 0};
  for (const StridedExtent* extent : active) add_runs(*extent, begin, begin + band.period, extents_);
  std::stable_sort(extents_.begin() + band.first_extent, extents_.end(),
                   [](const FileExtent& a, const FileExtent& b) { return a.begin < b.begin; });
  band.extent_count = static_cast<int64_t>(extents_.size()) - band.first_extent;
  if (band.extent_count > 0) bands_.push_back(band);
}

/// Adds a band of one extent, or makes the last band longer if the extent continues it.
void Bands::add_extent(const FileExtent& extent) {
  if (!bands_.empty() && bands_.back().extent_count == 1 && bands_.back().end == extent.begin &&
      extents_.back().rank == extent.rank && extents_.back().source == extent.source) {
    bands_.back().end = extents_.back().end = extent.end;
    bands_.back().period = extent.end - bands_.back().begin;
    return;
  }
  bands_.push_back({extent.begin, extent.end, extent.end - extent.begin, static_cast<int64_t>(extents_.size()), 1});
  extents_.push_back(extent);
}

void Bands::add_completed(const Bands& from, const Band& band) {
  const auto period = from.period(band);
  std::vector<FileExtent> owners;
  int64_t end = band.begin;
  const auto add = [&](const FileExtent& extent) {
    if (extent.begin < extent.end) owners.push_back(extent);
    end = std::max(end, extent.end);
  };
  for (const FileExtent& extent : period) {
    add({end, extent.begin, period.front().rank, -1});
    add({end, extent.end, extent.rank, extent.source});
  }
  add({end, band.begin + band.period, period.front().rank, -1});
  if (owners.size() == 1 && band.period == band.end - band.begin) return add_extent(owners.front());
  bands_.push_back(
      {band.begin, band.end, band.period, static_cast<int64_t>(extents_.size()), static_cast<int64_t>(owners.size())});
  extents_.insert(extents_.end(), owners.begin(), owners.end());
}

}  // namespace aliquot
