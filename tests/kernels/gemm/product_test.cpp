#include "kernels/gemm/product.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "kernels/elementwise/host_loops.h"
#include "kernels/gemm/loops.h"
#include "kernels/system/error.h"
#include "tests/support/all_close.h"
#include "tests/support/bf16_values.h"
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
  const int64_t per_thread = product_scratch_elements(DType::kFloat32, DType::kFloat32, Bf16ProductMethod::kWidened);
  std::vector<float> scratch(static_cast<size_t>(per_thread * pool.thread_count()), NAN);
  multiply(pool, {.a = {a.data(), transpose_a ? e.rows : e.depth, transpose_a},
                  .b = {b.data(), transpose_b ? e.depth : e.columns, transpose_b},
                  .to = to.data(),
                  .to_stride = e.columns,
                  .rows = e.rows,
                  .columns = e.columns,
                  .depth = e.depth,
                  .factor = 0.5f,
                  .add = true,
                  .scratch = scratch.data()});
  return to;
}

std::vector<double> expected(const Extents& e, bool transpose_a, bool transpose_b, bool add = true) {
  RandomValues random(3);
  const auto a = random.floats(e.rows * e.depth), b = random.floats(e.depth * e.columns);
  const auto before = random.floats(e.rows * e.columns);
  std::vector<double> to(before.begin(), before.end());
  if (!add) std::ranges::fill(to, 0.0);
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

TEST(Product, IsCorrectAndIndependentOfTheThreadCount) {
  ThreadPool one(1), two(2), five(5);
  for (const Extents e :
       {Extents{1, 1, 1}, {3, 700, 5}, {1100, 17, 40}, {64, 400, 129}, {2, 3, 1000}, {300, 420, 390}, {600, 384, 70}}) {
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) {
        const auto alone = product(one, e, a, b);
        EXPECT_TRUE(all_close(alone, expected(e, a, b), 2e-6)) << e.rows << " x " << e.columns << " x " << e.depth;
        EXPECT_TRUE(same_bits(product(two, e, a, b), alone));
        EXPECT_TRUE(same_bits(product(five, e, a, b), alone));
      }
    }
  }
}

// Computes the product by the definition of SumRounding::kFused: fused multiply-adds in blocks of the depth.
std::vector<float> reference_fused_sums(const Extents& e, bool transpose_a, bool transpose_b) {
  constexpr int64_t kDepth = 384;
  RandomValues random(3);
  const auto a = random.floats(e.rows * e.depth), b = random.floats(e.depth * e.columns);
  auto to = random.floats(e.rows * e.columns);
  for (int64_t r = 0; r < e.rows; ++r) {
    for (int64_t c = 0; c < e.columns; ++c) {
      float& element = to[static_cast<size_t>(r * e.columns + c)];
      for (int64_t begin = 0; begin < e.depth; begin += kDepth) {
        float sum = 0;
        for (int64_t k = begin; k < std::min(begin + kDepth, e.depth); ++k) {
          sum = std::fma(a[static_cast<size_t>(transpose_a ? k * e.rows + r : r * e.depth + k)],
                         b[static_cast<size_t>(transpose_b ? c * e.depth + k : k * e.columns + c)], sum);
        }
        element = std::fma(0.5f, sum, element);
      }
    }
  }
  return to;
}

// Every digest of a model depends on these bits.
TEST(Product, HasTheBitsOfItsDefinition) {
#ifdef __x86_64__
  if (best_isa() == Isa::kPlain || __builtin_cpu_supports("fma") == 0) GTEST_SKIP() << "no fused multiply-add";
  ThreadPool two(2);
  for (const Extents e : {Extents{1, 1, 1}, {300, 210, 800}, {700, 48, 256}, {70, 1000, 385}, {8, 49, 384}}) {
    for (const int transposed : {0, 1, 2, 3}) {
      const bool a = (transposed & 1) != 0, b = (transposed & 2) != 0;
      EXPECT_TRUE(same_bits(product(two, e, a, b), reference_fused_sums(e, a, b)))
          << e.rows << " x " << e.columns << " x " << e.depth << " " << transposed;
    }
  }
#else
  GTEST_SKIP() << "not an x86-64 processor";
#endif
}

// Computes a product with multiply_on_calling_thread(). `gap` NaN elements separate the rows of each matrix. Checks
// that the NaN elements between the rows of the result remain.
std::vector<float> small_product(const Extents& e, bool transpose_a, bool transpose_b, int64_t gap,
                                 const SmallLoops& loops, bool add = true) {
  const auto spread = [gap](const std::vector<float>& rows, int64_t width) {
    std::vector<float> to;
    for (size_t i = 0; i < rows.size(); ++i) {
      to.push_back(rows[i]);
      if ((i + 1) % static_cast<size_t>(width) == 0) to.insert(to.end(), static_cast<size_t>(gap), NAN);
    }
    return to;
  };
  RandomValues random(3);
  const int64_t a_row = transpose_a ? e.rows : e.depth, b_row = transpose_b ? e.depth : e.columns;
  const auto a = spread(random.floats(e.rows * e.depth), std::max<int64_t>(a_row, 1));
  const auto b = spread(random.floats(e.depth * e.columns), std::max<int64_t>(b_row, 1));
  auto before = random.floats(e.rows * e.columns);
  if (!add) std::ranges::fill(before, NAN);  // the product must not read its target
  auto to = spread(before, e.columns);
  multiply_on_calling_thread({.a = {a.data(), a_row + gap, transpose_a},
                              .b = {b.data(), b_row + gap, transpose_b},
                              .to = to.data(),
                              .to_stride = e.columns + gap,
                              .rows = e.rows,
                              .columns = e.columns,
                              .depth = e.depth,
                              .factor = 0.5f,
                              .add = add},
                             loops);
  std::vector<float> product;
  for (size_t i = 0; i < to.size(); ++i) {
    const bool in_gap = static_cast<int64_t>(i) % (e.columns + gap) >= e.columns;
    if (in_gap) {
      EXPECT_TRUE(std::isnan(to[i])) << i;
    } else {
      product.push_back(to[i]);
    }
  }
  return product;
}

// Computes the product by the definition of SumRounding::kSeparate.
std::vector<float> reference_separate_rounding(const Extents& e, const std::vector<float>& a,
                                               const std::vector<float>& b, std::vector<float> to) {
  for (int64_t r = 0; r < e.rows; ++r) {
    for (int64_t c = 0; c < e.columns; ++c) {
      float& sum = to[static_cast<size_t>(r * e.columns + c)];
      for (int64_t k = 0; k < e.depth; ++k)
        sum = sum + a[static_cast<size_t>(r * e.depth + k)] * b[static_cast<size_t>(k * e.columns + c)];
    }
  }
  return to;
}

// Every instruction set and thread count must give the bits of the definition, with and without scratch memory. Some
// depths exceed a block.
TEST(Product, SeparateRoundingGivesTheBitsOfItsDefinition) {
  ThreadPool one(1), three(3);
  for (const Extents e :
       {Extents{1, 1, 1}, {6, 32, 512}, {7, 33, 513}, {5, 17, 1100}, {64, 129, 3}, {270, 200, 40}, {3, 4, 0}}) {
    RandomValues random(5);
    const auto a = random.floats(e.rows * e.depth), b = random.floats(e.depth * e.columns);
    const auto before = random.floats(e.rows * e.columns);
    const auto per_thread =
        static_cast<size_t>(product_scratch_elements(DType::kFloat32, DType::kFloat32, Bf16ProductMethod::kWidened));
    std::vector<float> scratch(3 * per_thread);
    for (const bool add : {false, true}) {
      const auto expected = reference_separate_rounding(e, a, b, add ? before : std::vector<float>(before.size()));
      for (const Isa isa : available_isas()) {
        for (ThreadPool* pool : {&one, &three}) {
          for (float* where : {scratch.data(), static_cast<float*>(nullptr)}) {
            std::vector<float> to = before;
            multiply(*pool,
                     {.a = {a.data(), e.depth},
                      .b = {b.data(), e.columns},
                      .to = to.data(),
                      .to_stride = e.columns,
                      .rows = e.rows,
                      .columns = e.columns,
                      .depth = e.depth,
                      .add = add,
                      .scratch = where},
                     product_loops(isa, SumRounding::kSeparate));
            EXPECT_TRUE(same_bits(to, expected)) << name(isa) << " " << e.rows << " " << e.columns << " " << e.depth;
          }
        }
      }
    }
  }
}

// Compares small products of every instruction set with sums in double. Strides must not change a bit.
TEST(SmallProduct, IsCorrectForEveryShapeAndStride) {
  ThreadPool one(1);
  for (const Isa isa : available_isas()) {
#ifdef __x86_64__
    if (isa != Isa::kPlain && __builtin_cpu_supports("fma") == 0) continue;
#endif
    for (const Extents e :
         {Extents{1, 1, 1}, {64, 64, 32}, {64, 200, 64}, {13, 47, 130}, {5, 16, 0}, {7, 130, 300}, {64, 96, 1000}}) {
      for (const int transposed : {0, 1, 2, 3}) {
        const bool a = (transposed & 1) != 0, b = (transposed & 2) != 0;
        const auto plain = small_product(e, a, b, 0, small_loops(isa));
        EXPECT_TRUE(all_close(plain, expected(e, a, b), 2e-6)) << name(isa) << " " << e.rows << " " << e.columns;
        EXPECT_TRUE(same_bits(small_product(e, a, b, 5, small_loops(isa)), plain)) << name(isa);
        EXPECT_TRUE(all_close(small_product(e, a, b, 5, small_loops(isa), false), expected(e, a, b, false), 2e-6));
      }
    }
  }
}

// AVX2 and AVX-512 both use fused multiply-adds, so they must give the same bits.
TEST(SmallProduct, HasTheSameBitsOnAvx2AndAvx512) {
#ifdef __x86_64__
  if (best_isa() != Isa::kAvx512) GTEST_SKIP() << "AVX-512 is not the selected instruction set";
  for (const Extents e : {Extents{64, 64, 32}, {13, 47, 130}, {7, 130, 300}, {64, 64, 1000}}) {
    for (const bool b : {false, true}) {
      EXPECT_TRUE(same_bits(small_product(e, false, b, 0, small_loops(Isa::kAvx2)),
                            small_product(e, false, b, 0, small_loops(Isa::kAvx512))));
    }
  }
#else
  GTEST_SKIP() << "not an x86-64 processor";
#endif
}

// With kSeparate the sum starts at the value in `to`, so a factor cannot apply. Loops that the caller passes are for
// fp32, so 16-bit operands are rejected.
TEST(Product, WithGivenLoopsRejectsFactorsAnd16BitOperands) {
  ThreadPool one(1);
  const std::vector<float> a(1);
  const std::vector<uint16_t> narrow(1);
  std::vector<float> to(1), scratch(1 << 20);
  Product product{
      .a = {a.data(), 1}, .b = {a.data(), 1}, .to = to.data(), .rows = 1, .columns = 1, .depth = 1, .factor = 0.5f};
  EXPECT_THROW(multiply(one, product, product_loops(SumRounding::kSeparate)), FaultError);
  EXPECT_NO_THROW(multiply(one, product, product_loops(SumRounding::kFused)));
  product.a = product.b = {narrow.data(), 1};
  product.scratch = scratch.data();
  EXPECT_THROW(multiply(one, product, product_loops(SumRounding::kFused)), FaultError);
}

// Only fp32 operands can be packed on the stack.
TEST(Product, Of16BitOperandsWithoutScratchIsRejected) {
  ThreadPool one(1);
  const std::vector<uint16_t> a(1);
  std::vector<float> to(1);
  const Product product{.a = {a.data(), 1}, .b = {a.data(), 1}, .to = to.data(), .rows = 1, .columns = 1, .depth = 1};
  EXPECT_THROW(multiply(one, product), FaultError);
}

// Scratch is sized for operands of one type. Widening a second type would overwrite the scratch of another thread.
TEST(Product, OfTwoTypesIsRejected) {
  ThreadPool one(1);
  const std::vector<float> a(1);
  const std::vector<uint16_t> b(1);
  std::vector<float> to(1);
  const Product product{.a = {a.data(), 1}, .b = {b.data(), 1}, .to = to.data(), .rows = 1, .columns = 1, .depth = 1};
  try {
    multiply(one, product);
    FAIL() << "multiply() accepted operands of two types";
  } catch (const FaultError& error) {
    EXPECT_STREQ(error.what(), "cannot multiply a float32 matrix by a bfloat16 matrix: convert one of them first");
  }
}

// Products of bf16 operands into fp32 and bf16, with every method.
class ProductInBf16 : public testing::TestWithParam<Bf16ProductMethod> {
 protected:
  void SetUp() override {
    if (!supports_bf16_product_method(GetParam())) GTEST_SKIP() << "this processor does not support the method";
  }

  // Computes the product twice, the second time with `add`. `gap` elements separate the rows: NaN in the operands, and
  // zeros in the result. Checks that these zeros are not overwritten.
  template <typename Real>
  std::vector<Real> product_of(ThreadPool& pool, const Extents& e, bool transpose_a, bool transpose_b,
                               int64_t gap = 0) {
    RandomValues random(3);
    const int64_t a_row = transpose_a ? e.rows : e.depth, b_row = transpose_b ? e.depth : e.columns;
    const auto a = spread(random_bf16(random, e.rows * e.depth), a_row, gap);
    const auto b = spread(random_bf16(random, e.depth * e.columns), b_row, gap);
    std::vector<Real> to(static_cast<size_t>(e.rows * (e.columns + gap)), Real{});
    const int64_t per_thread = product_scratch_elements(DType::kBFloat16, DType::kBFloat16, GetParam());
    std::vector<float> scratch(static_cast<size_t>(per_thread * pool.thread_count()), NAN);
    Product product{.a = {a.data(), a_row + gap, transpose_a},
                    .b = {b.data(), b_row + gap, transpose_b},
                    .to = to.data(),
                    .to_stride = e.columns + gap,
                    .rows = e.rows,
                    .columns = e.columns,
                    .depth = e.depth,
                    .factor = 0.5f,
                    .scratch = scratch.data()};
    multiply(pool, product, GetParam());
    product.add = true;  // adds the same product again, which cancels the factor 0.5
    multiply(pool, product, GetParam());
    return gathered(to, e, gap);
  }

  static std::vector<uint16_t> spread(const std::vector<uint16_t>& rows, int64_t width, int64_t gap) {
    constexpr uint16_t kNan = 0x7fc0;
    std::vector<uint16_t> to;
    for (size_t i = 0; i < rows.size(); ++i) {
      to.push_back(rows[i]);
      if ((i + 1) % static_cast<size_t>(width) == 0) to.insert(to.end(), static_cast<size_t>(gap), kNan);
    }
    return to;
  }

  template <typename Real>
  static std::vector<Real> gathered(const std::vector<Real>& spread, const Extents& e, int64_t gap) {
    std::vector<Real> to;
    for (size_t i = 0; i < spread.size(); ++i) {
      const bool in_gap = static_cast<int64_t>(i) % (e.columns + gap) >= e.columns;
      if (in_gap) {
        EXPECT_EQ(spread[i], Real{}) << i;
      } else {
        to.push_back(spread[i]);
      }
    }
    return to;
  }

  static std::vector<double> expected_of(const Extents& e, bool transpose_a, bool transpose_b) {
    RandomValues random(3);
    const auto a = widened(random_bf16(random, e.rows * e.depth)),
               b = widened(random_bf16(random, e.depth * e.columns));
    std::vector<double> to(static_cast<size_t>(e.rows * e.columns));
    for (int64_t i = 0; i < e.rows * e.columns; ++i) {
      const int64_t r = i / e.columns, c = i % e.columns;
      for (int64_t k = 0; k < e.depth; ++k) {
        to[static_cast<size_t>(i)] +=
            static_cast<double>(a[static_cast<size_t>(transpose_a ? k * e.rows + r : r * e.depth + k)]) *
            static_cast<double>(b[static_cast<size_t>(transpose_b ? c * e.depth + k : k * e.columns + c)]);
      }
    }
    return to;
  }
};
INSTANTIATE_TEST_SUITE_P(Methods, ProductInBf16,
                         testing::Values(Bf16ProductMethod::kWidened, Bf16ProductMethod::kPairs,
                                         Bf16ProductMethod::kTiles),
                         [](const auto& how) { return std::string(name(how.param)); });

// Divided by the vector and tile sizes, the depths leave every kind of remainder.
TEST_P(ProductInBf16, IsCorrectAndIndependentOfThreadsAndStrides) {
  ThreadPool one(1), five(5);
  for (const Extents e : {Extents{1, 1, 1},
                          {3, 700, 5},
                          {17, 33, 63},
                          {32, 32, 32},
                          {49, 48, 31},
                          {1100, 17, 40},
                          {64, 400, 129},
                          {2, 3, 1100},
                          {300, 420, 390},
                          {600, 384, 70}}) {
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) {
        const auto wide = product_of<float>(one, e, a, b);
        EXPECT_TRUE(all_close(wide, expected_of(e, a, b), 2e-6)) << e.rows << " x " << e.columns << " x " << e.depth;
        EXPECT_TRUE(same_bits(product_of<float>(five, e, a, b), wide));
        EXPECT_TRUE(same_bits(product_of<float>(five, e, a, b, 7), wide));
        const auto narrow = product_of<uint16_t>(one, e, a, b);
        // The product is rounded to bf16 after each of the two calls. After the first call it is half as large, so the
        // first rounding error is half as large as the second.
        EXPECT_TRUE(all_close(widened(narrow), expected_of(e, a, b), 1.5 * kHalfUlp + 2e-6));
        EXPECT_EQ(product_of<uint16_t>(five, e, a, b), narrow);
        EXPECT_EQ(product_of<uint16_t>(one, e, a, b, 3), narrow);
      }
    }
  }
}

// An element depends only on its row of a and its column of b, so its bits must not change with the extents.
TEST_P(ProductInBf16, ElementsDoNotDependOnTheExtents) {
  constexpr int64_t kDepth = 500;
  ThreadPool pool(2);
  RandomValues random(3);
  const auto row = random_bf16(random, kDepth), column = random_bf16(random, kDepth);
  const auto square = [&](int64_t edge) {
    std::vector<uint16_t> a, b;
    for (int64_t i = 0; i < edge; ++i) {
      a.insert(a.end(), row.begin(), row.end());
      b.insert(b.end(), column.begin(), column.end());
    }
    std::vector<float> to(static_cast<size_t>(edge * edge), 0.7f);
    const int64_t per_thread = product_scratch_elements(DType::kBFloat16, DType::kFloat32, GetParam());
    std::vector<float> scratch(static_cast<size_t>(2 * per_thread), NAN);
    multiply(pool,
             {.a = {a.data(), kDepth},
              .b = {b.data(), kDepth, true},
              .to = to.data(),
              .to_stride = edge,
              .rows = edge,
              .columns = edge,
              .depth = kDepth,
              .factor = 0.3f,  // inexact in binary, so products with it are rounded
              .add = true,
              .scratch = scratch.data()},
             GetParam());
    return to;
  };
  const float alone = square(1)[0];
  for (const int64_t edge : {2, 31, 33, 290}) {
    const std::vector<float> many = square(edge);
    EXPECT_TRUE(same_bits(many, std::vector<float>(many.size(), alone))) << edge;
  }
}

TEST(Bf16ProductMethods, WideningIsAlwaysSupported) {
  EXPECT_TRUE(supports_bf16_product_method(Bf16ProductMethod::kWidened));
  EXPECT_TRUE(supports_bf16_product_method(selected_bf16_product_method()));
}

}  // namespace
}  // namespace aliquot::test
