#pragma once
// Functions that read and write pieces, in host memory or through the tensor's PieceAccess.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sharding/state.h"

namespace aliquot {

/// Returns the number of elements of each run of the piece; all its elements if it is one run.
inline int64_t run_elements(const StatePiece& piece) { return piece.run == 0 ? piece.count : piece.run; }

/// Returns the number of runs; 0 if the piece is empty.
inline int64_t run_count(const StatePiece& piece) { return piece.count == 0 ? 0 : piece.count / run_elements(piece); }

/// Returns the index in the tensor after the last element of the piece.
inline int64_t end_of(const StatePiece& piece) {
  return piece.count == 0 ? piece.offset : piece.offset + (run_count(piece) - 1) * piece.stride + run_elements(piece);
}

/// Returns whether the runs do not follow one another in memory.
inline bool has_gaps_in_memory(const StatePiece& piece) {
  return run_count(piece) > 1 && piece.memory_stride != 0 && piece.memory_stride != piece.run;
}

/// Returns what is wrong with a piece of a tensor of `element_count` elements, or an empty string. All other functions
/// require that nothing is wrong.
std::string piece_defect(const StatePiece& piece, int64_t element_count);

/// Returns the index in the tensor of element `index` of the piece.
inline int64_t element_at(const StatePiece& piece, int64_t index) {
  const int64_t run = run_elements(piece);
  return piece.offset + index / run * piece.stride + index % run;
}

/// Returns the number of elements of the piece that precede element `at` of the tensor.
int64_t elements_before(const StatePiece& piece, int64_t at);

/// Copies bytes [first_byte, first_byte + to.size()) of the piece to `to`. The bytes are numbered as if the elements of
/// the piece were stored without gaps in the tensor's dtype. If the tensor has a PieceAccess, each of its calls reads
/// complete elements of at most kStagingChunkBytes.
void read_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first_byte, std::span<std::byte> to);

/// Writes complete elements to the piece, starting at its element `first`. Elements are numbered as in read_piece().
void write_piece(const StateTensor& tensor, const StatePiece& piece, int64_t first, std::span<const std::byte> from);

inline constexpr int64_t kSkippedGapBytes = 64 << 10;

/// Consecutive elements of a tensor in one piece. `first` is an index in the tensor.
struct Overlap {
  int64_t first, count;
};

/// Calls visit(overlap, index) for the part of each run of the piece that is in [first, last) of the tensor, in order.
/// `index` is the number of the part's first element in the piece.
template <typename Visit>
void for_each_overlap(const StatePiece& piece, int64_t first, int64_t last, const Visit& visit) {
  const int64_t run = run_elements(piece), begin = elements_before(piece, first), end = elements_before(piece, last);
  for (int64_t index = begin; index < end;) {
    const int64_t within = index % run, count = std::min(run - within, end - index);
    visit(Overlap{element_at(piece, index), count}, index);
    index += count;
  }
}

/// Calls visit(first, last) for ranges of at most `most` elements of the tensor which together contain elements
/// [begin, end) of the piece, in order. A range may also contain gaps between runs, but none of more than
/// kSkippedGapBytes. It is faster to read such gaps than to make a call for each run.
template <typename Visit>
void for_each_range(const StatePiece& piece, int64_t width, int64_t begin, int64_t end, int64_t most,
                    const Visit& visit) {
  const int64_t run = run_elements(piece);
  const bool skips_gaps = run_count(piece) > 1 && (piece.stride - run) * width > kSkippedGapBytes;
  while (begin < end) {
    int64_t next = std::min(end, elements_before(piece, element_at(piece, begin) + most));
    if (skips_gaps) next = std::min(next, (begin / run + 1) * run);
    visit(element_at(piece, begin), element_at(piece, next - 1) + 1);
    begin = next;
  }
}

/// Writes those of the given elements to the piece that it contains. `from` has complete elements, starting at element
/// `first` of the tensor.
void write_overlaps(const StateTensor& tensor, const StatePiece& piece, int64_t first, std::span<const std::byte> from);

/// Writes complete elements to the pieces that contain them, starting at element `first` of the tensor.
void write_elements(const StateTensor& tensor, int64_t first, std::span<const std::byte> from);

}  // namespace aliquot
