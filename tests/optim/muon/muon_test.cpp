// Compares Muon with its formula in double, and sharded steps with unsharded ones, and tests the assignment of matrices
// to ranks.

#include "optim/muon/muon.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <iostream>
#include <random>

#include "kernels/formats/float16.h"
#include "kernels/system/error.h"
#include "optim/muon/orthogonalize.h"
#include "tests/optim/shard.h"
#include "tests/optim/small_problem.h"

namespace aliquot {
namespace {

std::vector<float> normals(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

void orthogonalize(std::vector<float>& matrix, const MatrixShape& shape, const Muon& muon, ThreadPool& pool) {
  std::vector<double> scratch(static_cast<size_t>(orthogonalize_scratch_bytes(shape)) / sizeof(double), NAN);
  orthogonalize_on_host({muon, matrix.data(), shape, reinterpret_cast<std::byte*>(scratch.data())}, pool);
}

/// A row-major matrix in double.
struct DoubleMatrix {
  int64_t rows, columns;
  std::vector<double> data;

  double at(int64_t i, int64_t j) const { return data[static_cast<size_t>(i * columns + j)]; }
  DoubleMatrix transposed() const {
    DoubleMatrix to{columns, rows, std::vector<double>(data.size())};
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) to.data[static_cast<size_t>(j * rows + i)] = at(i, j);
    }
    return to;
  }
  DoubleMatrix times(const DoubleMatrix& b) const {
    DoubleMatrix to{rows, b.columns, std::vector<double>(static_cast<size_t>(rows * b.columns))};
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = 0; k < columns; ++k) {
        for (int64_t j = 0; j < b.columns; ++j)
          to.data[static_cast<size_t>(i * b.columns + j)] += at(i, k) * b.at(k, j);
      }
    }
    return to;
  }
  /// Returns x * this + y * b.
  DoubleMatrix linear_combination(double x, double y, const DoubleMatrix& b) const {
    DoubleMatrix to = *this;
    for (size_t i = 0; i < data.size(); ++i) to.data[i] = x * data[i] + y * b.data[i];
    return to;
  }
};

/// The published iteration, without transposing first: (a I + b X X^T + c (X X^T)^2) X.
DoubleMatrix orthogonal_by_formula(DoubleMatrix x, const Muon& muon) {
  double norm = 0.0;
  for (const double value : x.data) norm += value * value;
  for (double& value : x.data) value /= std::max(std::sqrt(norm), decimal(muon.eps));
  const auto rows = static_cast<double>(x.rows), columns = static_cast<double>(x.columns);
  for (int i = 0; i < muon.iterations; ++i) {
    const DoubleMatrix gram = x.times(x.transposed());
    const DoubleMatrix polynomial = gram.linear_combination(-4.7750, 2.0315, gram.times(gram));
    x = x.linear_combination(3.4445, 1.0, polynomial.times(x));
  }
  const double factor = muon.rate == MuonRate::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                                         : 0.2 * std::sqrt(std::max(rows, columns));
  for (double& value : x.data) value *= factor;
  return x;
}

TEST(Muon, OrthogonalizationFollowsItsFormula) {
  ThreadPool pool(2);
  for (const MatrixShape& shape :
       std::vector<MatrixShape>{{1, 1}, {1, 300}, {300, 1}, {48, 48}, {40, 200}, {200, 40}, {97, 131}}) {
    for (const MuonRate rate : {MuonRate::kOriginal, MuonRate::kAsAdamW}) {
      const Muon muon{.rate = rate};
      auto matrix = normals(shape.rows * shape.columns, 3);
      const DoubleMatrix expected =
          orthogonal_by_formula({shape.rows, shape.columns, {matrix.begin(), matrix.end()}}, muon);
      orthogonalize(matrix, shape, muon, pool);
      double error_squares = 0.0, squares = 0.0;
      for (size_t i = 0; i < matrix.size(); ++i) {
        error_squares += std::pow(double{matrix[i]} - expected.data[i], 2), squares += std::pow(expected.data[i], 2);
      }
      // Each rounding has a relative error of 2^-24. Each of the five iterations multiplies it by at most 3.45.
      EXPECT_LT(std::sqrt(error_squares / squares), 1e-4) << shape.rows << " x " << shape.columns;
    }
  }
}

/// Intermediate products are stored in bf16, with 8 significant bits. The relative error must be small compared with
/// the distance of the singular values from 1 after the iteration.
TEST(Muon, ProductsInBf16StayNearTheFormula) {
  const MatrixShape shape{64, 200};
  const Muon muon{.products = DType::kBFloat16};
  auto matrix = normals(shape.rows * shape.columns, 8);
  const DoubleMatrix expected =
      orthogonal_by_formula({shape.rows, shape.columns, {matrix.begin(), matrix.end()}}, muon);
  auto again = matrix, exact = matrix;
  ThreadPool one(1), three(3);
  orthogonalize(matrix, shape, muon, one);
  orthogonalize(again, shape, muon, three);
  orthogonalize(exact, shape, Muon{}, one);
  EXPECT_TRUE(same_bits(matrix, again));
  EXPECT_FALSE(same_bits(matrix, exact));
  double error_squares = 0.0, squares = 0.0;
  for (size_t i = 0; i < matrix.size(); ++i) {
    error_squares += std::pow(double{matrix[i]} - expected.data[i], 2), squares += std::pow(expected.data[i], 2);
  }
  std::cout << "relative error with bf16 products: " << std::sqrt(error_squares / squares) << "\n";
  EXPECT_LT(std::sqrt(error_squares / squares), 0.03);
  for (const float value : matrix) ASSERT_EQ(bf16_to_float(float_to_bf16(value)), value);
}

TEST(Muon, OrthogonalizationMakesSingularValuesNearOne) {
  const MatrixShape shape{64, 160};
  auto matrix = normals(shape.rows * shape.columns, 4);
  ThreadPool pool(1);
  orthogonalize(matrix, shape, Muon{}, pool);
  // For a unit vector v, |X^T v| is between the least and the greatest singular value. After this iteration all
  // singular values are between 0.68 and 1.13.
  const DoubleMatrix x{shape.rows, shape.columns, {matrix.begin(), matrix.end()}};
  for (unsigned trial = 0; trial < 20; ++trial) {
    const auto direction = normals(shape.rows, 100 + trial);
    DoubleMatrix v{1, shape.rows, {direction.begin(), direction.end()}};
    const DoubleMatrix image = v.times(x);
    double before = 0.0, after = 0.0;
    for (const double value : v.data) before += value * value;
    for (const double value : image.data) after += value * value;
    EXPECT_GT(std::sqrt(after / before), 0.6);
    EXPECT_LT(std::sqrt(after / before), 1.2);
  }
}

TEST(Muon, ZerosStayZeroAndThreadsDoNotChangeBits) {
  const MatrixShape shape{70, 300};
  std::vector<float> zeros(70 * 300), with_one_thread = normals(70 * 300, 5), with_four_threads = with_one_thread;
  ThreadPool one_thread(1), four_threads(4);
  orthogonalize(zeros, shape, Muon{}, one_thread);
  EXPECT_EQ(std::ranges::count(zeros, 0.0f), 70 * 300);
  orthogonalize(with_one_thread, shape, Muon{}, one_thread);
  orthogonalize(with_four_threads, shape, Muon{}, four_threads);
  EXPECT_TRUE(same_bits(with_one_thread, with_four_threads));
}

/// Trains matrices with Muon. They are packed on block boundaries into `ranks` simulated shards in one process.
class Trainer {
 public:
  Trainer(std::vector<MatrixShape> shapes, std::vector<float> weights, const Muon& muon, int ranks)
      : shapes_(std::move(shapes)), muon_(muon), ranks_(ranks), weights_(std::move(weights)) {
    muon_.lr = muon_.rest.lr;  // so that the rate given to step() applies to the matrices unscaled
    for (const MatrixShape& shape : shapes_) counts_.push_back(shape.rows * shape.columns);
    segments_ = segments_of(counts_);
    momentum_.resize(weights_.size()), blended_.resize(weights_.size());
  }

  void step(const std::vector<float>& gradient, double lr) {
    for (int r = 0; r < ranks_; ++r) on_shard(r, muon_blend_rule(muon_), gradient, blended_, momentum_);
    const auto owners = assign_matrices(shapes_, ranks_);
    for (int owner = 0; owner < ranks_; ++owner) {
      for (size_t m = 0; m < shapes_.size(); ++m) {
        if (owners[m] != owner) continue;
        const auto first = blended_.begin() + segments_[m].offset;
        std::vector<float> full(first, first + counts_[m]);
        orthogonalize(full, shapes_[m], muon_, pool_);
        std::ranges::copy(full, first);
      }
    }
    for (int r = 0; r < ranks_; ++r) on_shard(r, muon_apply_rule(muon_, lr), blended_, weights_, momentum_);
  }

  const std::vector<float>& weights() const { return weights_; }

 private:
  void on_shard(int rank, const Rule& rule, const std::vector<float>& gradient, std::vector<float>& master,
                std::vector<float>& state) {
    const auto blocks = static_cast<int64_t>(weights_.size()) / kBlockElements;
    const int64_t begin = blocks * rank / ranks_ * kBlockElements, end = blocks * (rank + 1) / ranks_ * kBlockElements;
    UpdateArgs args;
    args.gradient = gradient.data(), args.master.whole = master.data(), args.states[0] = state.data();
    args.segments = segments_.data(), args.segment_count = static_cast<int64_t>(segments_.size());
    args.count = static_cast<int64_t>(weights_.size());
    update_range(best_isa(), args, {.rule = rule}, begin, end);
  }

  std::vector<MatrixShape> shapes_;
  Muon muon_;
  int ranks_;
  ThreadPool pool_{1};
  std::vector<float> weights_, momentum_, blended_;
  std::vector<int64_t> counts_;
  std::vector<Segment> segments_;
};

TEST(Muon, ShardingDoesNotChangeBits) {
  const std::vector<MatrixShape> shapes = {{40, 70}, {17, 16}, {90, 33}};
  int64_t count = 0;
  for (const MatrixShape& shape : shapes) count += whole_blocks(shape.rows * shape.columns);
  const auto weights = normals(count, 6);
  Trainer unsharded(shapes, weights, Muon{}, 1);
  for (int step = 1; step <= 3; ++step) unsharded.step(normals(count, 50u + static_cast<unsigned>(step)), 0.02);
  EXPECT_FALSE(same_bits(unsharded.weights(), weights));
  for (const int ranks : {2, 3, 4, 8}) {
    Trainer sharded(shapes, weights, Muon{}, ranks);
    for (int step = 1; step <= 3; ++step) sharded.step(normals(count, 50u + static_cast<unsigned>(step)), 0.02);
    EXPECT_TRUE(same_bits(unsharded.weights(), sharded.weights())) << ranks;
  }
}

TEST(Muon, StepFollowsItsFormula) {
  const Muon muon{.momentum = 0.9f, .weight_decay = 0.5f};
  const MatrixShape shape{16, 32};
  const auto start = normals(512, 7);
  Trainer trainer({shape}, start, muon, 1);
  DoubleMatrix weight{16, 32, {start.begin(), start.end()}}, momentum{16, 32, std::vector<double>(512)};
  for (unsigned t = 1; t <= 5; ++t) {
    const auto g = normals(512, 70 + t);
    trainer.step(g, 0.05);
    const DoubleMatrix gradient{16, 32, {g.begin(), g.end()}};
    momentum = momentum.linear_combination(0.9, 1.0 - 0.9, gradient);
    const DoubleMatrix direction = orthogonal_by_formula(gradient.linear_combination(1.0 - 0.9, 0.9, momentum), muon);
    weight = weight.linear_combination(1.0 - 0.05 * 0.5, -0.05, direction);
    for (size_t i = 0; i < 512; ++i) ASSERT_NEAR(double{trainer.weights()[i]}, weight.data[i], 1e-5) << t;
  }
}

TEST(Muon, ReducesTheLossOfASmallProblem) {
  SmallProblem problem;
  Trainer trainer({{SmallProblem::kIn, SmallProblem::kHidden}, {SmallProblem::kHidden, SmallProblem::kOut}},
                  problem.weights, Muon{}, 2);
  double first = 0.0, last = 0.0;
  for (int t = 1; t <= 200; ++t) {
    const double loss = problem.loss(static_cast<unsigned>(t));
    if (t == 1) first = loss;
    if (t > 190) last += loss / 10;
    trainer.step(problem.gradient, 0.05);
    problem.weights = trainer.weights();
  }
  std::cout << "loss " << first << " in step 1 and " << last << " after 200 steps with muon\n";
  EXPECT_LT(last, first / 10);
}

TEST(Muon, AssignmentBalancesTheWorkOfOwners) {
  // The matrices of GPT-2 124M: 12 blocks with four matrices each.
  std::vector<MatrixShape> shapes;
  for (int layer = 0; layer < 12; ++layer) {
    for (const MatrixShape& shape : std::vector<MatrixShape>{{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}}) {
      shapes.push_back(shape);
    }
  }
  for (const int owners : {1, 2, 3, 4, 8, 100}) {
    const auto owner = assign_matrices(shapes, owners);
    std::vector<double> load(static_cast<size_t>(owners));
    double all = 0.0, largest = 0.0;
    for (size_t m = 0; m < shapes.size(); ++m) {
      const double work = orthogonalize_multiply_adds(shapes[m], 5);
      ASSERT_GE(owner[m], 0);
      ASSERT_LT(owner[m], owners);
      load[static_cast<size_t>(owner[m])] += work, all += work, largest = std::max(largest, work);
    }
    EXPECT_LE(std::ranges::max(load), std::max(all / owners, largest) * 4 / 3) << owners;
  }
  EXPECT_EQ(assign_matrices(shapes, 4), assign_matrices(shapes, 4));
  EXPECT_TRUE(assign_matrices({}, 3).empty());
  EXPECT_EQ(orthogonalize_multiply_adds({10, 20}, 2), 2 * (2.0 * 10 * 10 * 20 + 1000));
  EXPECT_EQ(orthogonalize_multiply_adds({10, 20}, 2), orthogonalize_multiply_adds({20, 10}, 2));
}

TEST(Muon, AcceptsMatricesAndRejectsInvalidOptions) {
  const int64_t matrix[] = {3, 4}, vector[] = {5}, cube[] = {2, 2, 2}, empty[] = {0, 4};
  EXPECT_TRUE(is_matrix(matrix));
  EXPECT_FALSE(is_matrix(vector));
  EXPECT_FALSE(is_matrix(cube));
  EXPECT_FALSE(is_matrix(empty));
  EXPECT_NO_THROW(check(Optimizer(Muon{})));
  for (const Muon& invalid : {Muon{.momentum = 1.0f}, Muon{.iterations = 0}, Muon{.products = DType::kFloat16},
                              Muon{.rest = {.lr = 0.0f}}, Muon{.rest = {.beta1 = 2.0f}}}) {
    EXPECT_THROW(check(Optimizer(invalid)), UsageError);
  }
  EXPECT_DOUBLE_EQ(matrix_learning_rate(Muon{.lr = 0.02f, .rest = {.lr = 3e-4f}}, 1.5e-4), 0.01);
  EXPECT_EQ(muon_state(DType::kBFloat16), (StateSpec{"momentum_buffer", DType::kBFloat16}));
}

}  // namespace
}  // namespace aliquot
