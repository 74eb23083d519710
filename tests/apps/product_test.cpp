#include "apps/models/product.h"

#include <gtest/gtest.h>

#include "tests/support/closeness.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

struct Extents {
  int64_t rows, columns, depth;
};

std::vector<float> product(ThreadPool& pool, const Extents& e, bool transpose_a, bool transpose_b) {
  RandomValues random(3);
  const auto a = random.floats(e.rows * e.depth), b = random.floats(e.depth * e.columns);
  auto to = random.floats(e.rows * e.columns);
  multiply(pool, {.a = {a.data(), transpose_a ? e.rows : e.depth, transpose_a},
                  .b = {b.data(), transpose_b ? e.depth : e.columns, transpose_b},
                  .to = to.data(),
                  .to_stride = e.columns,
                  .rows = e.rows,
                  .columns = e.columns,
                  .depth = e.depth,
                  .factor = 0.5f,
                  .add = true});
  return to;
}

std::vector<double> expected(const Extents& e, bool transpose_a, bool transpose_b) {
  RandomValues random(3);
  const auto a = random.floats(e.rows * e.depth), b = random.floats(e.depth * e.columns);
  const auto before = random.floats(e.rows * e.columns);
  std::vector<double> to(before.begin(), before.end());
  for (int64_t r = 0; r < e.rows; ++r) {
    for (int64_t c = 0; c < e.columns; ++c) {
      for (int64_t k = 0; k < e.depth; ++k) {
        to[static_cast<size_t>(r * e.columns + c)] +=
            0.5 * static_cast<double>(a[static_cast<size_t>(transpose_a ? k * e.rows + r : r * e.depth + k)]) *
            static_cast<double>(b[static_cast<size_t>(transpose_b ? c * e.depth + k : k * e.columns + c)]);
      }
    }
  }
  return to;
}

TEST(Product, IsRightAndDoesNotDependOnThreads) {
  ThreadPool one(1), two(2), five(5);
  for (const Extents e : {Extents{1, 1, 1}, {3, 700, 5}, {1100, 17, 40}, {64, 400, 129}, {2, 3, 1000}}) {
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) {
        const auto alone = product(one, e, a, b);
        EXPECT_TRUE(close(alone, expected(e, a, b), 2e-6)) << e.rows << " x " << e.columns << " x " << e.depth;
        EXPECT_TRUE(same_bits(product(two, e, a, b), alone));
        EXPECT_TRUE(same_bits(product(five, e, a, b), alone));
      }
    }
  }
}

}  // namespace
}  // namespace aliquot::test
