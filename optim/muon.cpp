#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

#include "kernels/error.h"
#include "optim/matrix_product.h"

namespace aliquot {
namespace {

constexpr float kLinear = 3.4445f, kCubic = -4.7750f, kQuintic = 2.0315f;

void require(bool good, const char* what, double value, const char* range) {
  if (!good) throw UsageError(fmt::format("muon: {} is {}; it must be {}", what, value, range));
}

/// By rows, each in one order, in double: no number of threads and no vector width changes it.
double frobenius_norm(const float* matrix, const MatrixShape& shape) {
  double sum = 0.0;
  for (int64_t i = 0; i < shape.rows * shape.columns; ++i) sum += double{matrix[i]} * double{matrix[i]};
  return std::sqrt(sum);
}

double rate_factor(const MatrixShape& shape, MuonRate rate) {
  const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns);
  return rate == MuonRate::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                     : 0.2 * std::sqrt(std::max(rows, columns));
}

void scale(float* values, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

/// to = x * to + y * from
void blend(float* to, float x, float y, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = x * to[i] + y * from[i];
}

}  // namespace

void check(const Muon& muon) {
  require(muon.lr >= 0.0f && muon.lr < 1e30f, "lr", double{muon.lr}, "0 or more");
  require(muon.momentum >= 0.0f && muon.momentum < 1.0f, "momentum", double{muon.momentum}, "at least 0 and below 1");
  require(muon.weight_decay >= 0.0f && muon.weight_decay < 1e30f, "weight_decay", double{muon.weight_decay},
          "0 or more");
  require(muon.eps > 0.0f && muon.eps < 1.0f, "eps", double{muon.eps}, "above 0 and below 1");
  require(muon.iterations >= 1 && muon.iterations <= 100, "iterations", muon.iterations, "1 to 100");
  check(Optimizer(muon.rest));
}

bool is_matrix(std::span<const int64_t> shape) { return shape.size() == 2 && shape[0] > 0 && shape[1] > 0; }

StateSpec muon_state(DType moments) { return {"momentum_buffer", moments}; }

Rule muon_blend_rule(const Muon& muon) {
  const auto rest = static_cast<float>(1.0 - decimal(muon.momentum));
  return MuonBlendRule{.momentum = muon.momentum,
                       .of_gradient = rest,
                       .gradient_again = muon.nesterov ? rest : 0.0f,
                       .of_momentum = muon.nesterov ? muon.momentum : 1.0f};
}

Rule muon_apply_rule(const Muon& muon, double lr) {
  return MuonApplyRule{static_cast<float>(lr), static_cast<float>(lr * decimal(muon.weight_decay))};
}

double orthogonalize_work(const MatrixShape& shape, int iterations) {
  const auto small = static_cast<double>(std::min(shape.rows, shape.columns));
  const auto large = static_cast<double>(std::max(shape.rows, shape.columns));
  return iterations * (2.0 * small * small * large + small * small * small);
}

std::vector<int32_t> assign_matrices(std::span<const MatrixShape> shapes, int owner_count, int iterations) {
  std::vector<double> work;
  for (const MatrixShape& shape : shapes) work.push_back(orthogonalize_work(shape, iterations));
  std::vector<size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&work](size_t a, size_t b) { return work[a] > work[b]; });
  std::vector<double> load(static_cast<size_t>(owner_count), 0.0);
  std::vector<int32_t> owner(shapes.size());
  for (const size_t matrix : order) {
    const auto least = std::ranges::min_element(load);
    *least += work[matrix];
    owner[matrix] = static_cast<int32_t>(least - load.begin());
  }
  return owner;
}

int64_t MuonScratch::size_bytes(const MatrixShape& shape) {
  const int64_t small = std::min(shape.rows, shape.columns);
  return 4 * (2 * shape.rows * shape.columns + 2 * small * small);
}

void MuonScratch::reserve(const MatrixShape& shape) {
  const auto whole = static_cast<size_t>(shape.rows * shape.columns);
  const auto small = static_cast<size_t>(std::min(shape.rows, shape.columns));
  if (wide_.size() < whole) wide_.resize(whole), across_.resize(whole);
  if (square_.size() < small * small) square_.resize(small * small), product_.resize(small * small);
}

void orthogonalize(float* matrix, const MatrixShape& shape, const Muon& muon, MuonScratch& scratch, ThreadPool& pool) {
  scratch.reserve(shape);
  // The square of the shorter side is what the iteration pays for.
  const bool tall = shape.rows > shape.columns;
  const MatrixShape lying{std::min(shape.rows, shape.columns), std::max(shape.rows, shape.columns)};
  const int64_t count = lying.rows * lying.columns, squared = lying.rows * lying.rows;
  float *const x = scratch.wide_.data(), *const across = scratch.across_.data();
  float *const gram = scratch.square_.data(), *const product = scratch.product_.data();
  const Isa isa = best_isa();

  if (tall) {
    transpose(x, {matrix, shape.rows, shape.columns});
  } else {
    std::copy_n(matrix, count, x);
  }
  scale(x, static_cast<float>(1.0 / std::max(frobenius_norm(x, lying), decimal(muon.eps))), count);
  for (int i = 0; i < muon.iterations; ++i) {
    transpose(across, {x, lying.rows, lying.columns});
    multiply(gram, {x, lying.rows, lying.columns}, {across, lying.columns, lying.rows}, isa, pool);
    multiply(product, {gram, lying.rows, lying.rows}, {gram, lying.rows, lying.rows}, isa, pool);
    blend(product, kQuintic, kCubic, gram, squared);
    multiply(across, {product, lying.rows, lying.rows}, {x, lying.rows, lying.columns}, isa, pool);
    blend(x, kLinear, 1.0f, across, count);
  }
  scale(x, static_cast<float>(rate_factor(shape, muon.rate)), count);
  if (tall) {
    transpose(matrix, {x, lying.rows, lying.columns});
  } else {
    std::copy_n(x, count, matrix);
  }
}

}  // namespace aliquot
