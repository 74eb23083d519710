// Compares matrix products on a GPU, and what is computed with them, with plain loops.
#include "kernels/gemm/product_cuda.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/device/device_cuda.h"
#include "kernels/gemm/product_scratch.h"
#include "kernels/system/error.h"
#include "tests/support/all_close.h"
#include "tests/support/mirrored_array.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

using Array = MirroredArray;
using Gelu = ProductEpilogue::Gelu;
using Operand = ProductEpilogue::Operand;

class ProductOnGpu : public testing::TestWithParam<DType> {
 protected:
  static constexpr int64_t kRows = 24, kDepth = 17, kStride = 40;

  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this build finds no usable GPU, so the products were only compiled";
    device_ = std::make_unique<CudaDevice>(0);
    device_->make_current();
    stream_ = device_->make_stream(Lane::kCompute);
    products_ = std::make_unique<CudaProducts>(*device_);
    scratch_ = device_->allocate(kGpuProductScratchBytes, Category::kStaging, "test");
  }

  DType type() const { return GetParam(); }
  Array random(int64_t count, DType type, float scale = 1.0f) {
    return {*device_, *stream_, random_.floats(count, scale), type};
  }
  /// to = a b, with contiguous operands and rows of `to` that are kStride apart.
  Product product(Array& a, Array& b, Array& to, int64_t columns) {
    return {.a = {a.gpu(), kDepth},
            .b = {b.gpu(), columns},
            .to = to.gpu(),
            .to_stride = kStride,
            .rows = kRows,
            .columns = columns,
            .depth = kDepth,
            .scratch = scratch_.as<float>()};
  }
  /// The sums of the product in double, with the stride of `to`.
  static std::vector<double> sums(const Array& a, const Array& b, int64_t columns) {
    const auto x = a.on_host(), y = b.on_host();
    std::vector<double> to(kRows * kStride);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        for (int64_t k = 0; k < kDepth; ++k)
          to[static_cast<size_t>(r * kStride + c)] +=
              x[static_cast<size_t>(r * kDepth + k)] * y[static_cast<size_t>(k * columns + c)];
      }
    }
    return to;
  }
  /// Compares the columns of the product with `change(sum, index, column)`, and the others with `before`.
  template <class Change>
  static testing::AssertionResult is_changed(Array& to, const std::vector<double>& before,
                                             const std::vector<double>& sums, int64_t columns, const Change& change) {
    std::vector<double> expected = before;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const auto i = static_cast<size_t>(r * kStride + c);
        expected[i] = change(sums[i], i, static_cast<size_t>(c));
      }
    }
    return all_close(to.on_gpu(), expected, std::max(1e-5, 2 * rounding_tolerance(to.gpu().type)));
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CudaProducts> products_;
  Buffer scratch_;
  RandomValues random_{5};
};

INSTANTIATE_TEST_SUITE_P(Types, ProductOnGpu, testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& tested) { return std::string(name(tested.param)); });

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) { return (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4; }

/// The result and the bias may have different types.
TEST_P(ProductOnGpu, AddsABiasAndAMatrix) {
  const int64_t columns = 32;
  for (const DType result : {DType::kFloat32, type()}) {
    for (const bool has_bias : {false, true}) {
      for (const bool has_matrix : {false, true}) {
        SCOPED_TRACE(testing::Message() << name(result) << has_bias << has_matrix);
        Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type());
        Array to = random(kRows * kStride, result), more = random(kRows * kStride, result);
        Array bias = random(columns, type());
        const auto before = to.on_host(), added = more.on_host(), of_column = bias.on_host();
        ProductEpilogue extra;
        if (has_bias) extra.bias = bias.gpu();
        if (has_matrix) extra.added = more.gpu();
        const Product p = product(a, b, to, columns);
        ASSERT_TRUE(products_->supports(p, extra));
        products_->multiply(*stream_, p, extra);
        EXPECT_TRUE(is_changed(to, before, sums(a, b, columns), columns, [&](double sum, size_t i, size_t column) {
          return sum + (has_matrix ? added[i] : 0) + (has_bias ? of_column[column] : 0);
        }));
        EXPECT_TRUE(more.alike());
      }
    }
  }
}

TEST_P(ProductOnGpu, ComputesTheGeluAndKeepsItsInput) {
  const int64_t columns = 32;
  Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type(), 0.3f), bias = random(columns, type());
  Array to = random(kRows * kStride, type()), input = random(kRows * kStride, type());
  const auto before = to.on_host(), input_before = input.on_host(), of_column = bias.on_host();
  const ProductEpilogue extra{.bias = bias.gpu(), .gelu = Gelu::kForward, .gelu_input = input.gpu()};
  const Product p = product(a, b, to, columns);
  ASSERT_TRUE(products_->supports(p, extra));
  products_->multiply(*stream_, p, extra);
  const auto with_bias = [&](double sum, size_t, size_t column) { return sum + of_column[column]; };
  EXPECT_TRUE(is_changed(input, input_before, sums(a, b, columns), columns, with_bias));
  EXPECT_TRUE(is_changed(to, before, sums(a, b, columns), columns,
                         [&](double sum, size_t i, size_t column) { return gelu(with_bias(sum, i, column)); }));
}

TEST_P(ProductOnGpu, MultipliesByTheSlopeOfTheGelu) {
  const int64_t columns = 32;
  Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type(), 0.3f);
  Array to = random(kRows * kStride, type()), input = random(kRows * kStride, type());
  const auto before = to.on_host(), at = input.on_host();
  const ProductEpilogue extra{.gelu = Gelu::kBackward, .gelu_input = input.gpu()};
  const Product p = product(a, b, to, columns);
  ASSERT_TRUE(products_->supports(p, extra));
  products_->multiply(*stream_, p, extra);
  EXPECT_TRUE(input.alike());
  EXPECT_TRUE(is_changed(to, before, sums(a, b, columns), columns,
                         [&](double sum, size_t i, size_t) { return sum * gelu_slope(at[i]); }));
}

/// The bias gradients of both layouts of a linear layer, assigned and added to.
TEST_P(ProductOnGpu, SumsAnOperandOverTheDepth) {
  const int64_t columns = 32;
  for (const Operand summed : {Operand::kA, Operand::kB}) {
    for (const bool add : {false, true}) {
      SCOPED_TRACE(testing::Message() << (summed == Operand::kA ? "a" : "b") << add);
      const int64_t count = summed == Operand::kA ? kRows : columns;
      Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type());
      Array to = random(kRows * kStride, DType::kFloat32), vector = random(count, DType::kFloat32);
      const auto before = to.on_host(), earlier = vector.on_host(), x = a.on_host(), y = b.on_host();
      Product p = product(a, b, to, columns);
      p.add = add;
      const ProductEpilogue extra{.depth_sums = vector.gpu(), .summed = summed, .adds_depth_sums = add};
      ASSERT_TRUE(products_->supports(p, extra));
      products_->multiply(*stream_, p, extra);
      EXPECT_TRUE(is_changed(to, before, sums(a, b, columns), columns,
                             [&](double sum, size_t i, size_t) { return sum + (add ? before[i] : 0); }));
      std::vector<double> expected(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        double& sum = expected[static_cast<size_t>(i)];
        if (add) sum = earlier[static_cast<size_t>(i)];
        for (int64_t k = 0; k < kDepth; ++k)
          sum +=
              summed == Operand::kA ? x[static_cast<size_t>(i * kDepth + k)] : y[static_cast<size_t>(k * columns + i)];
      }
      EXPECT_TRUE(all_close(vector.on_gpu(), expected, 1e-5));
    }
  }
}

TEST_P(ProductOnGpu, RejectsWhatItCannotCompute) {
  const int64_t columns = 32;
  Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type());
  Array to = random(kRows * kStride, DType::kFloat32), more = random(kRows * kStride + 1, type());
  const Product p = product(a, b, to, columns);
  if (type() != DType::kFloat32) {
    EXPECT_FALSE(products_->supports(p, {.added = more.gpu()})) << "a matrix of another type";
    EXPECT_FALSE(products_->supports(p, {.depth_sums = more.gpu()})) << "sums of another type";
  }
  Product scaled = p;
  scaled.factor = 2;
  EXPECT_FALSE(products_->supports(scaled, {.depth_sums = to.gpu()})) << "sums of a product with a factor";
  const Values unaligned = Values(to.gpu()).from(1);
  EXPECT_FALSE(products_->supports(p, {.gelu = Gelu::kBackward, .gelu_input = unaligned}));
  Product adding = p;
  adding.add = true;
  EXPECT_THROW(products_->supports(adding, {.added = to.gpu()}), std::logic_error);
  EXPECT_THROW(products_->supports(p, {.gelu = Gelu::kBackward}), std::logic_error);
  EXPECT_THROW(products_->supports(p, {.bias = more.gpu(), .depth_sums = to.gpu()}), std::logic_error);
}

TEST_P(ProductOnGpu, RoundsOnlyFp32OperandsToTf32) {
  const int64_t columns = 32;
  Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type());
  Array to = random(kRows * kStride, DType::kFloat32);
  CudaProducts tf32(*device_, {.fp32 = Fp32Products::kTf32});
  products_->multiply(*stream_, product(a, b, to, columns));
  const std::vector<double> exact = to.on_gpu();
  tf32.multiply(*stream_, product(a, b, to, columns));
  EXPECT_EQ(to.on_gpu() == exact, type() != DType::kFloat32);
  EXPECT_TRUE(all_close(to.on_gpu(), exact, 0x1p-9));
}

/// With a file, the fastest candidate is measured once, and later runs read it.
TEST_P(ProductOnGpu, RemembersTheFastestCandidate) {
  const std::string file = testing::TempDir() + "choices_" + std::string(name(type())) + ".txt";
  std::filesystem::remove(file);
  const auto lines = [&] {
    std::vector<std::string> all;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  };
  const int64_t columns = 32;
  Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type());
  Array to = random(kRows * kStride, DType::kFloat32);
  const auto before = to.on_host(), expected = sums(a, b, columns);
  for (int run = 0; run < 2; ++run) {
    CudaProducts products(*device_, {.choices_file = file});
    Product p = product(a, b, to, columns);
    p.add = true;
    if (run == 0) {
      products.multiply(*stream_, p);  // repeating it would add several times
      EXPECT_TRUE(
          is_changed(to, before, expected, columns, [&](double sum, size_t i, size_t) { return sum + before[i]; }));
      EXPECT_TRUE(lines().empty());
    }
    p.add = false;
    for (int use = 0; use < 2; ++use) products.multiply(*stream_, p);
    EXPECT_TRUE(is_changed(to, before, expected, columns, [](double sum, size_t, size_t) { return sum; }));
    ASSERT_EQ(lines().size(), 1u);
    EXPECT_EQ(lines()[0].find(device_->model_name() + "\tcuBLASLt "), 0u) << lines()[0];
#ifdef ALIQUOT_SIMULATED_PRODUCTS
    EXPECT_NE(lines()[0].find("\t1\t"), std::string::npos) << lines()[0];
#endif
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace aliquot::test
