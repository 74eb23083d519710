#include "engine/plan/occupied_spans.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace aliquot {

std::size_t OccupiedSpans::leaf_count(OperationId count) {
  return std::bit_ceil(static_cast<std::size_t>(std::max<OperationId>(count, 1)));
}

void OccupiedSpans::add(Spans& spans, Span span) {
  const auto first = std::ranges::lower_bound(spans, span.begin, {}, &Span::end);
  const auto end = std::find_if(first, spans.end(), [&](const Span& each) { return each.begin > span.end; });
  if (first == end) {
    spans.insert(first, span);
    return;
  }
  *first = {std::min(first->begin, span.begin), std::max(std::prev(end)->end, span.end)};
  spans.erase(std::next(first), end);
}

void OccupiedSpans::occupy(const Range& at, const Lifetime& lifetime, Span span) {
  Node& node = nodes_[at.node];
  add(node.any, span);
  if (at.is_within(lifetime)) return add(node.throughout, span);
  for (const int half : {0, 1}) {
    if (at.half(half).overlaps(lifetime)) occupy(at.half(half), lifetime, span);
  }
}

void OccupiedSpans::find(const Range& at, const Lifetime& lifetime) {
  const bool within = at.is_within(lifetime);
  const Spans& spans = within ? nodes_[at.node].any : nodes_[at.node].throughout;
  if (!spans.empty()) found_.emplace_back(spans.data(), spans.data() + spans.size());
  if (within) return;
  for (const int half : {0, 1}) {
    if (at.half(half).overlaps(lifetime)) find(at.half(half), lifetime);
  }
}

int64_t OccupiedSpans::lowest_free(OperationId first, OperationId last, int64_t from, int64_t size) {
  found_.clear();
  find(root(), {first, last});
  int64_t offset = from;
  for (bool moved = true; std::exchange(moved, false);) {
    for (auto& [next, end] : found_) {
      next = std::lower_bound(next, end, offset, [](const Span& span, int64_t at) { return span.end <= at; });
      // The gap after this span may be large enough, so the offset moves only to the end of this span.
      if (next == end || next->begin >= offset + size) continue;
      offset = next->end;
      moved = true;
    }
  }
  return offset;
}

}  // namespace aliquot
