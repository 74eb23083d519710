#include "kernels/gemm/blocked_product.h"

#include <utility>

#include "kernels/elementwise/host_loops.h"

namespace aliquot {
namespace {

int64_t count_of(int64_t extent, int64_t block) { return (extent + block - 1) / block; }

// Returns the number of rows of `a` to pack at once. `most` is the number of rows for which there is memory. Blocks of
// equal size pack `b` as often as the largest possible blocks, and leave more of the cache to other data.
int64_t rows_per_block(int64_t rows, int64_t most) {
  const int64_t count = std::max<int64_t>(count_of(rows, most / kRowMultiple * kRowMultiple), 1);
  return std::max(round_up(count_of(rows, count), kRowMultiple), kRowMultiple);
}

// Converts a strip to fp32 in `to`.
OperandStrip converted(const OperandStrip& strip, float* to) {
  const int64_t rows = strip.depth_major ? strip.depth : strip.count,
                columns = strip.depth_major ? strip.count : strip.depth;
  const ConstValues from{strip.data, strip.type};
  for (int64_t row = 0; row < rows; ++row) {
    host_loops(best_isa())
        .cast(to + row * columns, DType::kFloat32, from.from(row * strip.stride).data, strip.type, columns);
  }
  return {to, columns, strip.depth_major, strip.count, strip.depth};
}

// Packs a block of rows of `a`, and multiplies it by strips of `b`. Packs each strip while it multiplies by the strip
// before it, if the loops can.
class BlockedProduct {
 public:
  BlockedProduct(const Product& p, const ProductLoops& loops, const BlockMemory& memory)
      : loops_(loops),
        p_(p),
        memory_(memory),
        lanes_(std::max<int64_t>(packed_lanes(loops, p.depth), 1)),
        rows_(rows_per_block(p.rows, memory.packed_elements / lanes_ - packed_columns(loops))),
        columns_(strip_columns(loops)),
        a_(memory.packed),
        b_(a_ + rows_ * lanes_),
        next_b_(loops.packs_ahead ? b_ + columns_ * lanes_ : b_) {}

  void multiply() {
    Position at;
    pack_a(at);
    pack_b(at, b_);
    for (Position next = after(at); next.k < std::max<int64_t>(p_.depth, 1); at = next, next = after(at)) {
      const bool packs_a = next.k != at.k || next.row != at.row, packs_b = next.k != at.k || next.column != at.column;
      const bool ahead = packs_b && packs_ahead(next);
      multiply_block(at, ahead ? PackAhead{strip_of_b(next), next_b_} : PackAhead{});
      if (packs_a) pack_a(next);
      if (packs_b && !ahead) pack_b(next, next_b_);
      if (packs_b) std::swap(b_, next_b_);
    }
    multiply_block(at, {});
  }

 private:
  // The beginning of a block.
  struct Position {
    int64_t k = 0, row = 0, column = 0;
  };

  Position after(Position at) const {
    at.column += columns_;
    if (at.column < p_.columns) return at;
    at.column = 0;
    at.row += rows_;
    if (at.row < p_.rows) return at;
    at.row = 0;
    at.k += kBlockDepth;
    return at;
  }

  bool packs_ahead(const Position& at) const {
    return loops_.packs_ahead && loops_.b_width == columns_at(at) && packs(loops_, p_.b.data.type);
  }
  int64_t rows_at(const Position& at) const { return std::min(rows_, p_.rows - at.row); }
  int64_t columns_at(const Position& at) const { return std::min(columns_, p_.columns - at.column); }
  int64_t depth_at(const Position& at) const { return std::min(kBlockDepth, p_.depth - at.k); }

  OperandStrip strip_of_a(const Position& at) const {
    const Matrix part = part_of(p_.a, at.row, at.k);
    return {part.data.data, part.stride, part.transposed, rows_at(at), depth_at(at), part.data.type};
  }
  OperandStrip strip_of_b(const Position& at) const {
    const Matrix part = part_of(p_.b, at.k, at.column);
    return {part.data.data, part.stride, !part.transposed, columns_at(at), depth_at(at), part.data.type};
  }
  void pack_a(const Position& at) const { pack(strip_of_a(at), loops_.pack_a, a_); }
  void pack_b(const Position& at, float* to) const { pack(strip_of_b(at), loops_.pack_b, to); }

  // Packs the strip. If it must be converted, does so piece by piece.
  void pack(const OperandStrip& strip, void (*pack_strip)(const OperandStrip&, void*), float* to) const {
    if (packs(loops_, strip.type)) return pack_strip(strip, to);
    for (int64_t first = 0; first < strip.count; first += kColumnMultiple) {
      OperandStrip piece = strip;
      const int64_t offset = first * (strip.depth_major ? 1 : strip.stride);
      piece.data = ConstValues{strip.data, strip.type}.from(offset).data;
      piece.count = std::min(kColumnMultiple, strip.count - first);
      pack_strip(converted(piece, memory_.converted), to + first * packed_lanes(loops_, strip.depth));
    }
  }

  void multiply_block(const Position& at, const PackAhead& ahead) const {
    loops_.multiply({a_, b_, rows_at(at), columns_at(at), depth_at(at),
                     p_.to.fp32() + at.row * p_.to_stride + at.column, p_.to_stride, p_.factor, p_.add || at.k > 0,
                     ahead});
  }

  const ProductLoops& loops_;
  const Product& p_;
  BlockMemory memory_;
  int64_t lanes_, rows_, columns_;
  float *a_, *b_, *next_b_;
};

}  // namespace

Matrix part_of(const Matrix& m, int64_t row, int64_t column) {
  return {m.data.from(m.transposed ? column * m.stride + row : row * m.stride + column), m.stride, m.transposed};
}

void multiply_by_blocks(const Product& p, const ProductLoops& loops, const BlockMemory& memory) {
  BlockedProduct(p, loops, memory).multiply();
}

}  // namespace aliquot
