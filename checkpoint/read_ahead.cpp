// Reads ranges of a file in order, the next ones on their way while one is worked on.
#include <algorithm>

#include "checkpoint/file/io_lane.h"
#include "checkpoint/reader.h"

namespace aliquot {
namespace {

/// A place in the ranges, which goes on a chunk at a time.
class Place {
 public:
  explicit Place(std::span<const FileRange> ranges) : ranges_(ranges) { skip(); }

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

void read_ahead(std::span<const FileRange> ranges, const ReadBytes& read, const TakeBytes& take, Ledger* ledger) {
  const StagingRing ring(ledger);
  IoLane lane;
  const auto bytes_of = [&ring](int64_t number, const FileRange& chunk) {
    return ring.chunk(number).first(static_cast<size_t>(chunk.count));
  };
  Place asked(ranges), taken(ranges);
  int64_t asked_count = 0, taken_count = 0;
  const auto ask = [&] {
    if (asked.at_end()) return;
    lane.submit([&read, to = bytes_of(asked_count, asked.chunk()), from = asked.chunk().begin] { read(to, from); });
    asked.next();
    ++asked_count;
  };
  while (asked_count < StagingRing::kChunks && !asked.at_end()) ask();
  for (; !taken.at_end(); taken.next(), ++taken_count) {
    lane.wait(taken_count + 1);
    take(taken.index(), bytes_of(taken_count, taken.chunk()), taken.chunk().begin);
    ask();
  }
}

}  // namespace aliquot
