#pragma once
// The byte ranges that buffers occupy during their lifetimes, for the placement of buffers.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot {

/// The offsets that placed buffers occupy, over the operations of a step. A segment tree over the operations: each node
/// stores merged spans, so that a search examines few of them even if thousands of buffers exist at the same time. Not
/// thread-safe. Throws only bad_alloc.
class OccupiedSpans {
 public:
  /// `count`: the number of operations.
  explicit OccupiedSpans(OperationId count) : nodes_(2 * leaf_count(count)) {}

  /// Occupies [begin, end) from operation `first` to operation `last`.
  void occupy(OperationId first, OperationId last, int64_t begin, int64_t end) {
    if (begin < end) occupy(root(), {first, last}, {begin, end});
  }

  /// Returns the lowest offset, at least `from`, at which `size` bytes are free from operation `first` to `last`.
  int64_t lowest_free(OperationId first, OperationId last, int64_t from, int64_t size);

 private:
  struct Span {
    int64_t begin, end;
  };
  /// Sorted by offset. Spans do not touch one another.
  using Spans = std::vector<Span>;
  struct Node {
    Spans throughout;  // of buffers whose lifetimes contain all operations of the node, but not all of its parent
    Spans any;         // of buffers whose lifetimes contain one of these operations
  };
  struct Lifetime {
    OperationId first, last;
  };
  /// A node and its operations [begin, end).
  struct Range {
    std::size_t node;
    OperationId begin, end;

    bool overlaps(const Lifetime& of) const { return of.first < end && of.last >= begin; }
    bool is_within(const Lifetime& of) const { return of.first <= begin && of.last >= end - 1; }
    Range half(int which) const {
      const OperationId middle = begin + (end - begin) / 2;
      return which == 0 ? Range{2 * node, begin, middle} : Range{2 * node + 1, middle, end};
    }
  };

  static std::size_t leaf_count(OperationId count);
  static void add(Spans& spans, Span span);
  Range root() const { return {1, 0, static_cast<OperationId>(nodes_.size() / 2)}; }
  void occupy(const Range& at, const Lifetime& lifetime, Span span);
  /// Adds to `found_` the spans that are occupied during the lifetime.
  void find(const Range& at, const Lifetime& lifetime);

  std::vector<Node> nodes_;
  std::vector<std::pair<const Span*, const Span*>> found_;  // begins and ends of lists that are not empty
};

}  // namespace aliquot
