#pragma once
// Allocates and frees ranges of offsets, for the placement of buffers.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aliquot {

/// The free spans of an unbounded range. Adjacent spans are merged. Each Block stores the length of its longest span,
/// so that a search among 10,000 spans examines about 200 entries. Copyable. Not thread-safe. Throws only bad_alloc.
class FreeSpans {
 public:
  /// Everything from `begin` on is free.
  explicit FreeSpans(int64_t begin) : blocks_{{{{begin, INT64_MAX}}, INT64_MAX - begin}} {}

  /// Allocates `size` bytes at the lowest free offset. For size 0, returns the start of the first span.
  int64_t allocate(int64_t size);

  /// Frees [begin, end), which must be allocated completely.
  void release(int64_t begin, int64_t end);

 private:
  struct Span {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  struct Block {
    std::vector<Span> spans;  // never empty
    int64_t longest;
  };
  /// Updates a block after its spans changed: removes it if it is empty, and splits it if it has too many spans.
  void update_block(std::size_t block);

  std::vector<Block> blocks_;  // sorted by offset; the last span extends without limit
};

}  // namespace aliquot
