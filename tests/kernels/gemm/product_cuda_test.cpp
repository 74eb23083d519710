// Compares matrix products on a GPU, and what is computed with them, with plain loops.
#include "kernels/gemm/product_cuda.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/device/device_cuda.h"
#include "kernels/gemm/product_scratch.h"
#include "kernels/system/seconds.h"
#include "tests/support/all_close.h"
#include "tests/support/mirrored_array.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

using Array = MirroredArray;
using Gelu = ProductEpilogue::Gelu;

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

TEST_P(ProductOnGpu, RejectsWhatItCannotCompute) {
  const int64_t columns = 32;
  Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type());
  Array to = random(kRows * kStride, DType::kFloat32), more = random(kRows * kStride + 1, type());
  const Product p = product(a, b, to, columns);
  if (type() != DType::kFloat32) {
    EXPECT_FALSE(products_->supports(p, {.added = more.gpu()})) << "a matrix of another type";
    EXPECT_FALSE(products_->supports(p, {.bias = more.gpu(), .scratch_bytes = 1 << 20})) << "no room for a vector";
  }
  EXPECT_FALSE(products_->supports(p, {.bias = Values(to.gpu()).from(1)})) << "a bias that is not aligned";
  const Values unaligned = Values(to.gpu()).from(1);
  EXPECT_FALSE(products_->supports(p, {.gelu = Gelu::kBackward, .gelu_input = unaligned}));
  Product adding = p;
  adding.add = true;
  EXPECT_THROW(products_->supports(adding, {.added = to.gpu()}), std::logic_error);
  EXPECT_THROW(products_->supports(p, {.gelu = Gelu::kBackward}), std::logic_error);
}

TEST_P(ProductOnGpu, RoundsOnlyFp32OperandsToTf32) {
  const int64_t columns = 32;
  Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type());
  Array to = random(kRows * kStride, DType::kFloat32);
  CudaProducts tf32(*device_, {.rounding = OperandRounding::kTf32});
  products_->multiply(*stream_, product(a, b, to, columns));
  const std::vector<double> exact = to.on_gpu();
  tf32.multiply(*stream_, product(a, b, to, columns));
  EXPECT_EQ(to.on_gpu() == exact, type() != DType::kFloat32);
  EXPECT_TRUE(all_close(to.on_gpu(), exact, 0x1p-9));
}

/// With a file, the fastest candidate is measured once. Later runs use the candidate in the file.
TEST_P(ProductOnGpu, RemembersTheFastestCandidate) {
  const std::string file = testing::TempDir() + "choices_" + std::string(name(type())) + ".txt";
  std::filesystem::remove(file);
  const auto text = [&] {
    std::ifstream in(file);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const int64_t columns = 32;
  Array a = random(kRows * kDepth, type()), b = random(kDepth * columns, type());
  Array to = random(kRows * kStride, DType::kFloat32);
  const auto before = to.on_host(), expected = sums(a, b, columns);
  Product p = product(a, b, to, columns);
  {
    CudaProducts products(*device_, {.choices_file = file});
    p.add = true;
    products.multiply(*stream_, p);  // repeating it would add several times
    EXPECT_TRUE(
        is_changed(to, before, expected, columns, [&](double sum, size_t i, size_t) { return sum + before[i]; }));
    EXPECT_EQ(text(), "");
    p.add = false;
    for (int use = 0; use < 2; ++use) products.multiply(*stream_, p);
    EXPECT_TRUE(is_changed(to, before, expected, columns, [](double sum, size_t, size_t) { return sum; }));
  }
  const std::string measured = text();
  EXPECT_EQ(measured.find(device_->model_name() + "\tcuBLASLt "), 0u) << measured;
  EXPECT_EQ(std::ranges::count(measured, '\n'), 1) << measured;
#ifdef ALIQUOT_SIMULATED_PRODUCTS
  const size_t fastest = measured.find("\t1\t");
  ASSERT_NE(fastest, std::string::npos) << measured;
  for (const char candidate : {'0', '1'}) {  // only candidate 1 is fast
    std::string changed = measured;
    changed[fastest + 1] = candidate;
    std::ofstream(file) << changed;
    for (const bool measures : {false, true}) {
      CudaProducts products(*device_, {.choices_file = file, .measures = measures});
      const double begin = now_seconds();
      products.multiply(*stream_, p);
      stream_->synchronize();
      EXPECT_EQ(now_seconds() - begin > 2e-3, candidate == '0');
      EXPECT_EQ(text(), changed);
    }
  }
#endif
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace aliquot::test
