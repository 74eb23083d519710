#pragma once
// The Newton-Schulz iteration for all devices. Internal to optim/.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "optim/muon/orthogonalize.h"

namespace aliquot {

/// A row-major matrix without padding between rows.
struct ConstMatrix {
  const float* data;
  int64_t rows, columns;
};

/// The layout of the scratch memory: sums of squares, then `x`, `across`, `gram` and `product`. `x` and `across` have
/// the size of the matrix. `gram` and `product` are square, and their edge is the shorter side of the matrix.
struct NewtonSchulzScratch {
  static constexpr int64_t kAlign = 64;
  static int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  explicit NewtonSchulzScratch(const MatrixShape& shape)
      : block_count((shape.rows * shape.columns + kBlockElements - 1) / kBlockElements),
        small(std::min(shape.rows, shape.columns)),
        matrix_bytes(aligned(4 * shape.rows * shape.columns)),
        gram_bytes(aligned(4 * small * small)) {}

  int64_t sums_bytes() const { return aligned(block_count * static_cast<int64_t>(sizeof(double))); }
  int64_t bytes() const { return sums_bytes() + 2 * matrix_bytes + 2 * gram_bytes; }

  int64_t block_count, small, matrix_bytes, gram_bytes;
};

inline double matrix_rate_factor(const MatrixShape& shape, MuonRate rate) {
  const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns);
  return rate == MuonRate::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                     : 0.2 * std::sqrt(std::max(rows, columns));
}

/// The coefficients of the iteration.
inline constexpr float kLinear = 3.4445f, kCubic = -4.7750f, kQuintic = 2.0315f;

/// `Loops` has the operations of a device: transpose, copy, multiply, blend (to = x * to + y * from), scale, round (to
/// bf16) and normalize. The operations run in the order in which they are called. All devices give the same bits.
template <typename Loops>
void newton_schulz(const OrthogonalizeArgs& args, const Loops& loops) {
  const NewtonSchulzScratch layout(args.shape);
  auto* sums = reinterpret_cast<double*>(args.scratch);
  auto* x = reinterpret_cast<float*>(args.scratch + layout.sums_bytes());
  auto* across = x + layout.matrix_bytes / 4;
  auto* gram = across + layout.matrix_bytes / 4;
  auto* product = gram + layout.gram_bytes / 4;
  // The iteration multiplies by square matrices whose edge is the number of rows. Transposing a tall matrix makes them
  // smaller.
  const bool tall = args.shape.rows > args.shape.columns;
  const int64_t n = layout.small, length = std::max(args.shape.rows, args.shape.columns), count = n * length;
  const auto round_if_bf16 = [&](float* values, int64_t of) {
    if (args.products == DType::kBFloat16) loops.round(values, of);
  };

  if (tall) {
    loops.transpose(x, {args.matrix, args.shape.rows, args.shape.columns});
  } else {
    loops.copy(x, args.matrix, count);
  }
  loops.normalize(x, count, sums, args.eps);
  round_if_bf16(x, count);
  for (int i = 0; i < args.iterations; ++i) {
    loops.transpose(across, {x, n, length});
    loops.multiply(gram, {x, n, length}, {across, length, n});
    round_if_bf16(gram, n * n);
    loops.multiply(product, {gram, n, n}, {gram, n, n});
    loops.blend(product, kQuintic, kCubic, gram, n * n);
    round_if_bf16(product, n * n);
    loops.multiply(across, {product, n, n}, {x, n, length});
    loops.blend(x, kLinear, 1.0f, across, count);
    round_if_bf16(x, count);
  }
  loops.scale(x, static_cast<float>(matrix_rate_factor(args.shape, args.rate)), count);
  if (tall) {
    loops.transpose(args.matrix, {x, n, length});
  } else {
    loops.copy(args.matrix, x, count);
  }
}

/// Returns the factor by which normalize() multiplies each element: 1 / max(norm, eps).
ALIQUOT_HOST_DEVICE float inverse_norm(double sum_of_squares, float eps) {
  const double norm = sqrt(sum_of_squares), least = static_cast<double>(eps);
  return static_cast<float>(1.0 / (norm > least ? norm : least));
}

}  // namespace aliquot
