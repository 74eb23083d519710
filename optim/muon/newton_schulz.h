#pragma once
// The iteration itself, once for every device. For optim's own sources.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "optim/muon/orthogonalize.h"

namespace aliquot {

/// A row-major matrix whose rows lie one after the other.
struct ConstMatrix {
  const float* data;
  int64_t rows, columns;
};

/// Places in the scratch. `wide` and `across` are as large as the matrix, `gram` and `product` squares of its shorter side.
struct NewtonSchulzScratch {
  static constexpr int64_t kAlign = 64;
  static int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  explicit NewtonSchulzScratch(const MatrixShape& shape)
      : block_count((shape.rows * shape.columns + kBlockElements - 1) / kBlockElements),
        small(std::min(shape.rows, shape.columns)),
        whole_bytes(aligned(4 * shape.rows * shape.columns)),
        squared_bytes(aligned(4 * small * small)) {}

  int64_t sums_bytes() const { return aligned(block_count * static_cast<int64_t>(sizeof(double))); }
  int64_t bytes() const { return sums_bytes() + 2 * whole_bytes + 2 * squared_bytes; }

  int64_t block_count, small, whole_bytes, squared_bytes;
};

inline double rate_factor(const MatrixShape& shape, MuonRate rate) {
  const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns);
  return rate == MuonRate::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                     : 0.2 * std::sqrt(std::max(rows, columns));
}

/// `Loops` are what a device does: transpose, copy, multiply, blend (to = x * to + y * from), scale, round (to bf16) and
/// normalize, each in the order of its calls. They give the same bits wherever they run.
template <typename Loops>
void newton_schulz(const Orthogonalize& what, const Loops& loops) {
  constexpr float kLinear = 3.4445f, kCubic = -4.7750f, kQuintic = 2.0315f;
  const NewtonSchulzScratch places(what.shape);
  auto* sums = reinterpret_cast<double*>(what.scratch);
  auto* x = reinterpret_cast<float*>(what.scratch + places.sums_bytes());
  auto* across = x + places.whole_bytes / 4;
  auto* gram = across + places.whole_bytes / 4;
  auto* product = gram + places.squared_bytes / 4;
  // The square of the shorter side is what the iteration pays for.
  const bool tall = what.shape.rows > what.shape.columns;
  const int64_t n = places.small, length = std::max(what.shape.rows, what.shape.columns), count = n * length;
  const auto narrow = [&](float* values, int64_t of) {
    if (what.products == DType::kBFloat16) loops.round(values, of);
  };

  if (tall) {
    loops.transpose(x, {what.matrix, what.shape.rows, what.shape.columns});
  } else {
    loops.copy(x, what.matrix, count);
  }
  loops.normalize(x, count, sums, what.eps);
  narrow(x, count);
  for (int i = 0; i < what.iterations; ++i) {
    loops.transpose(across, {x, n, length});
    loops.multiply(gram, {x, n, length}, {across, length, n});
    narrow(gram, n * n);
    loops.multiply(product, {gram, n, n}, {gram, n, n});
    loops.blend(product, kQuintic, kCubic, gram, n * n);
    narrow(product, n * n);
    loops.multiply(across, {product, n, n}, {x, n, length});
    loops.blend(x, kLinear, 1.0f, across, count);
    narrow(x, count);
  }
  loops.scale(x, static_cast<float>(rate_factor(what.shape, what.rate)), count);
  if (tall) {
    loops.transpose(what.matrix, {x, n, length});
  } else {
    loops.copy(what.matrix, x, count);
  }
}

/// What normalize multiplies by, given the sum of squares.
ALIQUOT_HOST_DEVICE float inverse_norm(double sum_of_squares, float eps) {
  const double norm = sqrt(sum_of_squares), least = static_cast<double>(eps);
  return static_cast<float>(1.0 / (norm > least ? norm : least));
}

}  // namespace aliquot
