// Reads ranges of a file in order, ahead of their consumer.
#include <algorithm>

#include "checkpoint/file/io_lane.h"
#include "checkpoint/reader.h"

namespace aliquot {
namespace {

/// Iterates over the chunks of the ranges.
class ChunkCursor {
 public:
  explicit ChunkCursor(std::span<const FileRange> ranges) : ranges_(ranges) { skip(); }

  bool at_end() const { return index_ == ranges_.size(); }
  size_t index() const { return index_; }
  FileRange chunk() const {
    const FileRange& range = ranges_[index_];
    return {range.begin + done_, std::min(StagingRing::kChunkBytes, range.count - done_)};
  }
  void next() {
    done_ += StagingRing::kChunkBytes;
    skip();
  }

 private:
  void skip() {
    while (index_ < ranges_.size() && done_ >= ranges_[index_].count) ++index_, done_ = 0;
  }

  std::span<const FileRange> ranges_;
  size_t index_ = 0;
  int64_t done_ = 0;
};

}  // namespace

void read_ahead(std::span<const FileRange> ranges, const ReadChunk& read, const ConsumeChunk& consume, Ledger* ledger) {
  const StagingRing ring(ledger);
  IoLane lane;
  const auto bytes_of = [&ring](int64_t number, const FileRange& chunk) {
    return ring.chunk(number).first(static_cast<size_t>(chunk.count));
  };
  ChunkCursor submit_cursor(ranges), consume_cursor(ranges);
  int64_t submitted_count = 0, consumed_count = 0;
  const auto submit_next = [&] {
    if (submit_cursor.at_end()) return;
    lane.submit([&read, to = bytes_of(submitted_count, submit_cursor.chunk()), from = submit_cursor.chunk().begin] {
      read(to, from);
    });
    submit_cursor.next();
    ++submitted_count;
  };
  while (submitted_count < StagingRing::kChunks && !submit_cursor.at_end()) submit_next();
  for (; !consume_cursor.at_end(); consume_cursor.next(), ++consumed_count) {
    lane.wait(consumed_count + 1);
    consume(consume_cursor.index(), bytes_of(consumed_count, consume_cursor.chunk()), consume_cursor.chunk().begin);
    submit_next();
  }
}

}  // namespace aliquot
