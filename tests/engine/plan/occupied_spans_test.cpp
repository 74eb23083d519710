// Compares OccupiedSpans with a reference that examines all buffers.

#include "engine/plan/occupied_spans.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace aliquot {
namespace {

struct Buffer {
  OperationId first, last;
  int64_t begin, end;
};

/// The reference: sorts the buffers whose lifetimes overlap, and takes the first gap.
int64_t lowest_free(const std::vector<Buffer>& placed, const Buffer& wanted, int64_t from) {
  std::vector<Buffer> others;
  std::ranges::copy_if(placed, std::back_inserter(others), [&](const Buffer& other) {
    return other.first <= wanted.last && other.last >= wanted.first && other.begin < other.end;
  });
  std::ranges::sort(others, {}, &Buffer::begin);
  const int64_t size = wanted.end - wanted.begin;
  int64_t offset = from;
  for (const Buffer& other : others) {
    if (other.begin >= offset + size) break;
    offset = std::max(offset, other.end);
  }
  return offset;
}

TEST(OccupiedSpans, FindsTheSameOffsetsAsTheReference) {
  constexpr int64_t kFrom = 512;
  std::mt19937 random(11);
  for (const OperationId count : {1, 2, 3, 17, 64, 200}) {
    for (int round = 0; round < 40; ++round) {
      OccupiedSpans spans(count);
      std::vector<Buffer> placed;
      const auto longest = static_cast<unsigned>(1 + random() % count);
      for (int i = 0; i < 300; ++i) {
        const auto first = static_cast<OperationId>(random() % count);
        const auto last = std::min<OperationId>(count - 1, first + static_cast<OperationId>(random() % longest));
        Buffer buffer{first, last, 0, static_cast<int64_t>(random() % 5)};
        const int64_t offset = lowest_free(placed, buffer, kFrom);
        ASSERT_EQ(spans.lowest_free(first, last, kFrom, buffer.end), offset) << count << " operations, buffer " << i;
        const int64_t size = buffer.end;
        buffer.begin = offset + static_cast<int64_t>(random() % 3);  // gaps of several sizes
        buffer.end = buffer.begin + size;
        spans.occupy(first, last, buffer.begin, buffer.end);
        placed.push_back(buffer);
      }
    }
  }
}

}  // namespace
}  // namespace aliquot
