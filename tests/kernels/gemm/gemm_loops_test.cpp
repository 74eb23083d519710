// Compares the loops of matrix products with sums computed one element at a time.
#include <cmath>
#include <gtest/gtest.h>
#include <tuple>

#include "kernels/gemm/loops.h"
#include "tests/support/all_close.h"
#include "tests/support/bf16_values.h"
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

std::vector<float> multiply_with_loops(const ProductLoops& loops, const Operands& o, bool add,
                                       const PackAhead& ahead = {}) {
  const auto packed_buffer = [&o](int64_t count, int64_t width) {
    return std::vector<float>(static_cast<size_t>((count + width - 1) / width * width * o.depth), NAN);
  };
  std::vector<float> a = packed_buffer(o.rows, loops.a_width), b = packed_buffer(o.columns, loops.b_width),
                     to = o.before;
  loops.pack_a({o.a.data(), o.a_depth_major ? o.rows : o.depth, o.a_depth_major, o.rows, o.depth}, a.data());
  loops.pack_b({o.b.data(), o.b_depth_major ? o.columns : o.depth, o.b_depth_major, o.columns, o.depth}, b.data());
  loops.multiply({a.data(), b.data(), o.rows, o.columns, o.depth, to.data(), o.columns, kFactor, add, ahead});
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
  for (const auto& [rows, columns, depth] : {std::tuple{1, 1, 1},
                                             {8, 48, 16},
                                             {9, 49, 17},
                                             {7, 47, 0},
                                             {64, 200, 40},
                                             {3, 96, 250},
                                             {75, 50, 384},
                                             {130, 48, 201}}) {
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

// A strip of both types with elements of the same value, and gaps between its rows.
struct StripOfBothTypes {
  std::vector<uint16_t> bf16;
  std::vector<float> fp32;
  OperandStrip strip;

  StripOfBothTypes(int64_t count, int64_t depth, bool depth_major) {
    constexpr int64_t kGap = 3;
    RandomValues random(12);
    const int64_t stride = (depth_major ? count : depth) + kGap;
    bf16 = random_bf16(random, stride * (depth_major ? depth : count));
    fp32 = widened(bf16);
    strip = {nullptr, stride, depth_major, count, depth};
  }
  OperandStrip of_type(DType type) const {
    OperandStrip typed = strip;
    typed.type = type;
    typed.data = type == DType::kFloat32 ? static_cast<const void*>(fp32.data()) : bf16.data();
    return typed;
  }
};

using PackStrip = void (*)(const OperandStrip&, void*);

std::vector<float> packed(PackStrip pack, int64_t width, const OperandStrip& strip) {
  std::vector<float> to(static_cast<size_t>((strip.count + width - 1) / width * width * strip.depth), NAN);
  pack(strip, to.data());
  return to;
}

TEST_P(ProductLoopsTest, PackTheSlivers) {
  const auto [isa, a_depth_major, depth_major] = GetParam();
  if (a_depth_major || !runs_here(isa)) GTEST_SKIP() << "tested with other parameters, or not supported here";
  const ProductLoops& loops = product_loops(isa);
  for (const auto& [pack, width] : {std::pair{loops.pack_a, loops.a_width}, {loops.pack_b, loops.b_width}}) {
    for (const auto& [count, depth] : {std::pair{1, 1}, {48, 384}, {61, 37}, {100, 64}, {24, 17}}) {
      const StripOfBothTypes both(count, depth, depth_major);
      const OperandStrip fp32 = both.of_type(DType::kFloat32);
      const std::vector<float> slivers = packed(pack, width, fp32);
      EXPECT_EQ(packed(pack, width, both.of_type(DType::kBFloat16)), slivers) << count << " x " << depth;
      for (int64_t i = 0; i < std::ssize(slivers); ++i) {
        const int64_t of_sliver = width * depth, k = i % of_sliver / width, row = i / of_sliver * width + i % width;
        const int64_t at = depth_major ? k * fp32.stride + row : row * fp32.stride + k;
        const float expected = row < count ? both.fp32[static_cast<size_t>(at)] : 0.0f;
        ASSERT_EQ(slivers[static_cast<size_t>(i)], expected) << count << " x " << depth << ": element " << i;
      }
    }
  }
}

TEST_P(ProductLoopsTest, PackAheadWithoutAnEffectOnTheProduct) {
  const auto [isa, a_depth_major, depth_major] = GetParam();
  if (a_depth_major || !runs_here(isa)) GTEST_SKIP() << "tested with other parameters, or not supported here";
  const ProductLoops& loops = product_loops(isa);
  if (!loops.packs_ahead) GTEST_SKIP() << "the loops do not pack ahead";
  for (const auto& [rows, depth] : {std::pair{1, 5}, {8, 16}, {64, 384}, {256, 201}, {512, 64}}) {
    const Operands o(rows, static_cast<int>(loops.b_width), depth, false, false);
    const std::vector<float> alone = multiply_with_loops(loops, o, true);
    for (const int next_depth : {1, 384}) {
      const StripOfBothTypes next(loops.b_width, next_depth, depth_major);
      for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
        std::vector<float> ahead(static_cast<size_t>(loops.b_width * next_depth), NAN);
        EXPECT_TRUE(same_bits(multiply_with_loops(loops, o, true, {next.of_type(type), ahead.data()}), alone));
        EXPECT_EQ(ahead, packed(loops.pack_b, loops.b_width, next.of_type(type))) << rows << " " << next_depth;
      }
    }
  }
}

}  // namespace
}  // namespace aliquot::test
