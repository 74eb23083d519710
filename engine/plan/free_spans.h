#pragma once
// What of a range is free.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aliquot {

/// The free bytes of a range without end, as spans that do not touch. Among 10,000 of them one is found by looking at some
/// 200: they lie in blocks, each of which knows its longest. Copyable; one thread at a time; throws nothing but bad_alloc.
class FreeSpans {
 public:
  /// Everything from `begin` on is free.
  explicit FreeSpans(int64_t begin) : blocks_{{{{begin, INT64_MAX}}, INT64_MAX - begin}} {}

  /// The lowest offset at which `size` bytes are free, which then are not; for none, where the first span begins.
  int64_t allocate(int64_t size);

  /// [begin, end) is taken, all of it.
  void release(int64_t begin, int64_t end);

 private:
  struct Span {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  struct Block {
    std::vector<Span> spans;  // one at least
    int64_t longest;
  };
  /// After its spans have changed: drops the block if it is empty, and halves it if it is long.
  void update_block(std::size_t block);

  std::vector<Block> blocks_;  // by offset; the last span of the last has no end
};

}  // namespace aliquot
