#pragma once
// Division of a range of positions into bands in which the owners of positions repeat periodically. Positions are
// elements of a tensor or bytes of a file. The size of the description does not depend on the number of runs.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace aliquot {

/// Positions that `rank` holds: `run_count` runs of `run` positions each, whose first positions are `stride` apart.
/// `source` identifies the data on that rank.
struct StridedExtent {
  int64_t begin = 0, run = 0, stride = 0, run_count = 1;
  int32_t rank = 0, source = 0;

  int64_t end() const { return begin + (run_count - 1) * stride + run; }
};

/// The positions [begin, end) of a file or tensor. `rank` holds their data.
struct FileExtent {
  int64_t begin = 0, end = 0;
  int32_t rank = 0;
  int32_t source = 0;
};

/// Positions [begin, end). Position p has the owner of position begin + (p - begin) % period. The extents of the first
/// period are elements [first_extent, first_extent + extent_count) of Bands::extents.
struct Band {
  int64_t begin = 0, end = 0, period = 0;
  int64_t first_extent = 0, extent_count = 0;
};

/// Bands in ascending order. Positions between bands have no owner.
class Bands {
 public:
  Bands() = default;
  /// Every extent must have at least one run, runs of at least one position, and a stride of at least the run if it has
  /// several runs. Within a band, extents are sorted by their first position; those with equal positions, by their
  /// position in `held`.
  explicit Bands(std::span<const StridedExtent> held);

  std::span<const Band> bands() const { return bands_; }
  /// Returns the extents of the first period of the band.
  std::span<const FileExtent> period(const Band& band) const {
    return std::span(extents_).subspan(static_cast<size_t>(band.first_extent), static_cast<size_t>(band.extent_count));
  }

  /// Assigns each position in [0, end) to exactly one extent. Where extents overlap, the first one in the order of the
  /// constructor has the position. Positions without owner within a band belong to the rank of its first extent, with
  /// source -1. Calls `fill` for each other range without owner, which returns its extents.
  template <typename Fill>
  void complete(int64_t end, const Fill& fill);

  /// Calls visit(extent) for the extents in [from, to), in order. Requires that each position has exactly one owner.
  template <typename Visit>
  void for_each(int64_t from, int64_t to, const Visit& visit) const;

 private:
  void add_band(int64_t begin, int64_t end, std::span<const StridedExtent* const> active);
  void add_completed(const Bands& from, const Band& band);
  void add_extent(const FileExtent& extent);

  std::vector<Band> bands_;
  std::vector<FileExtent> extents_;
};

template <typename Fill>
void Bands::complete(int64_t end, const Fill& fill) {
  Bands result;
  int64_t next = 0;
  const auto fill_to = [&](int64_t last) {
    if (next >= last) return;
    for (const FileExtent& extent : fill(next, last)) result.add_extent(extent);
  };
  for (const Band& band : bands_) {
    fill_to(band.begin);
    result.add_completed(*this, band);
    next = band.end;
  }
  fill_to(end);
  *this = std::move(result);
}

template <typename Visit>
void Bands::for_each(int64_t from, int64_t to, const Visit& visit) const {
  auto band =
      std::upper_bound(bands_.begin(), bands_.end(), from, [](int64_t at, const Band& each) { return at < each.end; });
  for (; band != bands_.end() && band->begin < to; ++band) {
    const auto extents = period(*band);
    const int64_t first = std::max(from, band->begin), last = std::min(to, band->end);
    int64_t base = band->begin + (first - band->begin) / band->period * band->period;
    auto extent = std::upper_bound(extents.begin(), extents.end(), first - base + band->begin,
                                   [](int64_t at, const FileExtent& each) { return at < each.end; });
    while (true) {
      const int64_t shift = base - band->begin;
      const FileExtent part{std::max(first, extent->begin + shift), std::min(last, extent->end + shift), extent->rank,
                            extent->source};
      if (part.begin >= part.end) break;
      visit(part);
      if (++extent == extents.end()) extent = extents.begin(), base += band->period;
    }
  }
}

}  // namespace aliquot
