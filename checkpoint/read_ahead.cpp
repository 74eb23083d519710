// Reads ranges of a file in order, ahead of their consumer.
#include <algorithm>
#include <deque>

#include "checkpoint/file/io_lane.h"
#include "checkpoint/reader.h"

namespace aliquot {
namespace {

constexpr int64_t kAlignment = 4096;

/// Part of a range, and its position in the memory of a chunk.
struct ChunkPart {
  size_t index;  // of the range
  FileRange bytes;
  int64_t position;
};

/// Divides the ranges into chunks.
class ChunkCursor {
 public:
  explicit ChunkCursor(std::span<const FileRange> ranges) : ranges_(ranges) {}

  /// Returns the parts of the next chunk, in order. Empty after the last chunk.
  std::vector<ChunkPart> next() {
    std::vector<ChunkPart> parts;
    int64_t used = 0;
    while (index_ < ranges_.size()) {
      const FileRange& range = ranges_[index_];
      const int64_t count = std::min(StagingRing::kChunkBytes, range.count - done_);
      if (count > StagingRing::kChunkBytes - used) break;
      if (count > 0) parts.push_back({index_, {range.begin + done_, count, range.through_page_cache}, used});
      used += (count + kAlignment - 1) / kAlignment * kAlignment;
      done_ += count;
      if (done_ == range.count) ++index_, done_ = 0;
    }
    return parts;
  }

 private:
  std::span<const FileRange> ranges_;
  size_t index_ = 0;
  int64_t done_ = 0;
};

}  // namespace

void read_ahead(std::span<const FileRange> ranges, const ReadChunk& read, const ConsumeChunk& consume, Ledger* ledger) {
  const StagingRing ring(ledger);
  std::deque<std::vector<ChunkPart>> chunks;  // those that are being read
  const auto bytes_of = [&ring](int64_t number, const ChunkPart& part) {
    return ring.chunk(number).subspan(static_cast<size_t>(part.position), static_cast<size_t>(part.bytes.count));
  };
  IoLane lane;  // its thread ends before the variables that it uses are destroyed
  ChunkCursor cursor(ranges);
  int64_t submitted_count = 0;
  const auto submit_next = [&] {
    std::vector<ChunkPart> parts = cursor.next();
    if (parts.empty()) return;
    lane.submit([&read, &bytes_of, parts, number = submitted_count] {
      for (const ChunkPart& part : parts) read(bytes_of(number, part), part.bytes);
    });
    chunks.push_back(std::move(parts));
    ++submitted_count;
  };
  for (int64_t i = 0; i < StagingRing::kChunks; ++i) submit_next();
  for (int64_t number = 0; !chunks.empty(); ++number) {
    lane.wait(number + 1);
    for (const ChunkPart& part : chunks.front()) consume(part.index, bytes_of(number, part), part.bytes.begin);
    chunks.pop_front();
    submit_next();
  }
}

}  // namespace aliquot
