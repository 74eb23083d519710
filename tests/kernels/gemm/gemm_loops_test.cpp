// Compares the loops of matrix products with sums computed one element at a time.
#include <cmath>
#include <gtest/gtest.h>
#include <tuple>

#include "kernels/gemm/loops.h"
#include "tests/support/all_close.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

constexpr float kFactor = 0.3f;  // inexact in binary, so products with it are rounded

struct Operands {
  int64_t rows, columns, depth;
  bool a_depth_major, b_depth_major;
  std::vector<float> a, b, before;

  Operands(int64_t r, int64_t c, int64_t d, bool depth_major_a, bool depth_major_b)
      : rows(r), columns(c), depth(d), a_depth_major(depth_major_a), b_depth_major(depth_major_b) {
    RandomValues random(11);
    a = random.floats(rows * depth);
    b = random.floats(columns * depth);
    before = random.floats(rows * columns);
  }
  float of_a(int64_t row, int64_t k) const {
    return a[static_cast<size_t>(a_depth_major ? k * rows + row : row * depth + k)];
  }
  float of_b(int64_t k, int64_t column) const {
    return b[static_cast<size_t>(b_depth_major ? k * columns + column : column * depth + k)];
  }
};

std::vector<float> multiply_with_loops(const ProductLoops& loops, const Operands& o, bool add) {
  const auto packed_buffer = [&o](int64_t count, int64_t width) {
    return std::vector<float>(static_cast<size_t>((count + width - 1) / width * width * o.depth), NAN);
  };
  std::vector<float> a = packed_buffer(o.rows, loops.a_width), b = packed_buffer(o.columns, loops.b_width),
                     to = o.before;
  loops.pack_a({o.a.data(), o.a_depth_major ? o.rows : o.depth, o.a_depth_major, o.rows, o.depth}, a.data());
  loops.pack_b({o.b.data(), o.b_depth_major ? o.columns : o.depth, o.b_depth_major, o.columns, o.depth}, b.data());
  loops.multiply({a.data(), b.data(), o.rows, o.columns, o.depth, to.data(), o.columns, kFactor, add});
  return to;
}

/// Sums along the depth in ascending order with fused multiply-adds.
std::vector<float> reference_product(const Operands& o, bool add) {
  std::vector<float> to = o.before;
  for (int64_t row = 0; row < o.rows; ++row) {
    for (int64_t column = 0; column < o.columns; ++column) {
      float sum = 0;
      for (int64_t k = 0; k < o.depth; ++k) sum = std::fma(o.of_a(row, k), o.of_b(k, column), sum);
      float& element = to[static_cast<size_t>(row * o.columns + column)];
      element = std::fma(kFactor, sum, add ? element : 0.0f);
    }
  }
  return to;
}

bool runs_here(Isa isa) {
#ifdef __x86_64__
  if (isa != Isa::kPlain && __builtin_cpu_supports("fma") == 0) return false;
#endif
  return isa <= best_isa();
}

class ProductLoopsTest : public testing::TestWithParam<std::tuple<Isa, bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(Isas, ProductLoopsTest,
                         testing::Combine(testing::Values(Isa::kPlain, Isa::kAvx2, Isa::kAvx512), testing::Bool(),
                                          testing::Bool()));

TEST_P(ProductLoopsTest, SumInAscendingOrderOfTheDepth) {
  const auto [isa, a_depth_major, b_depth_major] = GetParam();
  if (!runs_here(isa)) GTEST_SKIP() << "this processor does not support the instruction set";
  const ProductLoops& loops = product_loops(isa);
  for (const auto& [rows, columns, depth] :
       {std::tuple{1, 1, 1}, {8, 48, 16}, {9, 49, 17}, {7, 47, 0}, {64, 200, 40}, {3, 96, 250}}) {
    const Operands o(rows, columns, depth, a_depth_major, b_depth_major);
    for (const bool add : {false, true}) {
      const std::vector<float> product = multiply_with_loops(loops, o, add), expected = reference_product(o, add);
      const std::vector<double> wanted(expected.begin(), expected.end());
      EXPECT_TRUE(all_close(product, wanted, 2e-6)) << rows << " x " << columns << " x " << depth;
#ifdef __x86_64__
      if (isa == Isa::kPlain) continue;
      EXPECT_TRUE(same_bits(product, expected)) << rows << " x " << columns << " x " << depth;
#endif
    }
  }
}

}  // namespace
}  // namespace aliquot::test
