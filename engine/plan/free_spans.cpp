#include "engine/plan/free_spans.h"

#include <algorithm>
#include <iterator>

namespace aliquot {
namespace {

constexpr std::size_t kMaxSpansPerBlock = 256;

}  // namespace

int64_t FreeSpans::allocate(int64_t size) {
  const auto block = std::ranges::find_if(blocks_, [size](const Block& b) { return b.longest >= size; });
  const auto span = std::ranges::find_if(block->spans, [size](const Span& s) { return s.size() >= size; });
  const int64_t begin = span->begin;
  span->begin += size;
  if (span->size() == 0) block->spans.erase(span);
  update_block(static_cast<std::size_t>(block - blocks_.begin()));
  return begin;
}

void FreeSpans::release(int64_t begin, int64_t end) {
  const auto block = std::ranges::lower_bound(blocks_, begin, {}, [](const Block& b) { return b.spans.back().begin; });
  auto& spans = block->spans;
  auto span = std::ranges::lower_bound(spans, begin, {}, &Span::begin);
  if (span->begin == end) {
    span->begin = begin;
  } else {
    span = spans.insert(span, {begin, end});
  }
  const auto index = static_cast<std::size_t>(block - blocks_.begin());
  if (span != spans.begin() && std::prev(span)->end == begin) {
    span->begin = std::prev(span)->begin;
    spans.erase(std::prev(span));
  } else if (span == spans.begin() && index > 0 && blocks_[index - 1].spans.back().end == begin) {
    span->begin = blocks_[index - 1].spans.back().begin;
    blocks_[index - 1].spans.pop_back();
    update_block(index);
    return update_block(index - 1);
  }
  update_block(index);
}

void FreeSpans::update_block(std::size_t block) {
  const auto longest = [](const std::vector<Span>& spans) { return std::ranges::max(spans, {}, &Span::size).size(); };
  auto& spans = blocks_[block].spans;
  const auto at = blocks_.begin() + static_cast<std::ptrdiff_t>(block);
  if (spans.empty()) {
    blocks_.erase(at);
    return;
  }
  if (spans.size() > kMaxSpansPerBlock) {
    const auto middle = spans.begin() + kMaxSpansPerBlock / 2;
    Block upper{{middle, spans.end()}, 0};
    spans.erase(middle, spans.end());
    upper.longest = longest(upper.spans);
    blocks_[block].longest = longest(spans);
    blocks_.insert(at + 1, std::move(upper));
    return;
  }
  blocks_[block].longest = longest(spans);
}

}  // namespace aliquot
