// Compares matrix products of fp8 operands on a GPU with sums in double.
#include <cmath>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device_cuda.h"
#include "kernels/gemm/product_cuda.h"
#include "kernels/gemm/product_scratch.h"
#include "tests/support/mirrored_array.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

using Array = MirroredArray;
using Gelu = ProductEpilogue::Gelu;

constexpr Fp8Format kE4M3 = Fp8Format::kE4M3, kE5M2 = Fp8Format::kE5M2;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) { return (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4; }

/// A matrix of random codes, with contiguous depth.
struct Fp8Matrix {
  std::vector<double> values;
  Buffer codes;
};

class Fp8ProductOnGpu : public testing::Test {
 protected:
  static constexpr int64_t kRows = 32, kDepth = 48, kColumns = 16;

  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this build finds no usable GPU, so the products were only compiled";
    device_ = std::make_unique<CudaDevice>(0);
    device_->make_current();
    if (device_->capability() < 89) GTEST_SKIP() << device_->model_name() << " has no products of fp8 operands";
    stream_ = device_->make_stream(Lane::kCompute);
    products_ = std::make_unique<CudaProducts>(*device_);
    scratch_ = device_->allocate(kGpuProductScratchBytes, Category::kStaging, "test");
    factors_ = std::make_unique<Array>(*device_, *stream_, std::vector<float>{0.125f, 4.0f});
  }

  Fp8Matrix matrix(int64_t count, Fp8Format format) {
    std::vector<uint8_t> codes;
    Fp8Matrix made;
    for (int64_t i = 0; i < count; ++i) {
      codes.push_back(float_to_fp8(static_cast<float>(random_.normal()), format));
      made.values.push_back(fp8_to_float(codes.back(), format));
    }
    made.codes = device_->allocate(count, Category::kStaging, "test");
    device_->kernels().copy(*stream_, made.codes.data(), codes.data(), count);
    stream_->synchronize();
    return made;
  }
  Array random(int64_t count, DType type) { return {*device_, *stream_, random_.floats(count), type}; }

  /// to = 0.5 * a * b, where the first operand's factor is 1/8 and that of the second is 4.
  GpuProduct product(const Fp8Matrix& a, const Fp8Matrix& b, Values to, Fp8Format of_a, Fp8Format of_b) {
    return {{.a = {{a.codes.data(), DType::kUInt8}, kDepth},
             .b = {{b.codes.data(), DType::kUInt8}, kDepth, true},
             .to = to,
             .to_stride = kColumns,
             .rows = kRows,
             .columns = kColumns,
             .depth = kDepth,
             .factor = 0.5f,
             .scratch = scratch_.as<float>()},
            {of_a, of_b, factors_->gpu_as<float>(), factors_->gpu_as<float>() + 1}};
  }
  static std::vector<double> sums(const Fp8Matrix& a, const Fp8Matrix& b) {
    std::vector<double> to;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kColumns; ++c) {
        double sum = 0;
        for (int64_t k = 0; k < kDepth; ++k)
          sum += a.values[static_cast<size_t>(r * kDepth + k)] * b.values[static_cast<size_t>(c * kDepth + k)];
        to.push_back(0.5 * 0.125 * 4.0 * sum);
      }
    }
    return to;
  }
  /// Compares with change(sum, index).
  template <class Change>
  static testing::AssertionResult is_changed(Array& to, std::vector<double> sums, const Change& change) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = change(sums[i], i);
    return all_close(to.on_gpu(), sums, std::max(1e-5, 2 * rounding_tolerance(to.gpu().type)));
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CudaProducts> products_;
  std::unique_ptr<Array> factors_;
  Buffer scratch_;
  RandomValues random_{29};
};

TEST_F(Fp8ProductOnGpu, AddsABiasAndAMatrix) {
  for (const auto& [of_a, of_b] : {std::pair{kE4M3, kE4M3}, std::pair{kE5M2, kE4M3}, std::pair{kE4M3, kE5M2}}) {
    for (const DType result : {DType::kFloat32, DType::kBFloat16}) {
      for (const DType bias_type : {DType::kFloat32, DType::kBFloat16}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(of_a) << static_cast<int>(of_b) << name(result));
        const Fp8Matrix a = matrix(kRows * kDepth, of_a), b = matrix(kColumns * kDepth, of_b);
        Array to = random(kRows * kColumns, result), more = random(kRows * kColumns, result);
        // cuBLASLt reads the bias in bf16.
        Array bias = random(kColumns, bias_type);
        const auto before = to.on_host(), added = more.on_host(), of_column = bias.on_host();
        const auto bias_of = [&](size_t i) {
          return static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(of_column[i % kColumns]))));
        };
        GpuProduct p = product(a, b, to.gpu(), of_a, of_b);
        products_->multiply(*stream_, p);
        EXPECT_TRUE(is_changed(to, sums(a, b), [](double sum, size_t) { return sum; }));
        products_->multiply(*stream_, p, {.added = more.gpu(), .bias = bias.gpu()});
        EXPECT_TRUE(is_changed(to, sums(a, b), [&](double sum, size_t i) { return sum + added[i] + bias_of(i); }));
        p.add = true;
        const auto earlier = to.on_gpu();
        products_->multiply(*stream_, p, {.bias = bias.gpu()});
        EXPECT_TRUE(is_changed(to, sums(a, b), [&](double sum, size_t i) { return sum + earlier[i] + bias_of(i); }));
      }
    }
  }
}

TEST_F(Fp8ProductOnGpu, ComputesTheGeluAndItsGradient) {
  const Fp8Matrix a = matrix(kRows * kDepth, kE4M3), b = matrix(kColumns * kDepth, kE4M3);
  Array to = random(kRows * kColumns, DType::kBFloat16), input = random(kRows * kColumns, DType::kBFloat16);
  Array bias = random(kColumns, DType::kBFloat16);
  const auto at = input.on_host(), of_column = bias.on_host();
  const GpuProduct p = product(a, b, to.gpu(), kE4M3, kE4M3);
  const ProductEpilogue slope{.gelu = Gelu::kBackward, .gelu_input = input.gpu()};
  if (products_->supports(p, slope)) {
    products_->multiply(*stream_, p, slope);
    EXPECT_TRUE(is_changed(to, sums(a, b), [&](double sum, size_t i) { return sum * gelu_slope(at[i]); }));
  }
  const ProductEpilogue forward{.bias = bias.gpu(), .gelu = Gelu::kForward, .gelu_input = input.gpu()};
  if (!products_->supports(p, forward)) return;
  products_->multiply(*stream_, p, forward);
  const auto with_bias = [&](double sum, size_t i) { return sum + of_column[i % kColumns]; };
  EXPECT_TRUE(is_changed(input, sums(a, b), with_bias));
  EXPECT_TRUE(is_changed(to, sums(a, b), [&](double sum, size_t i) { return gelu(with_bias(sum, i)); }));
}

TEST_F(Fp8ProductOnGpu, RejectsWhatCublasltCannotCompute) {
  const Fp8Matrix a = matrix(kRows * kDepth, kE4M3), b = matrix(kColumns * kDepth, kE4M3);
  Array to = random(kRows * kColumns + 16, DType::kFloat32), half = random(kRows * kColumns, DType::kFloat16);
  const GpuProduct valid = product(a, b, to.gpu(), kE4M3, kE4M3);
  EXPECT_TRUE(products_->supports(valid, {}));
  const auto changed = [&](const auto& change) {
    GpuProduct other = valid;
    change(other);
    return products_->supports(other, {});
  };
  EXPECT_FALSE(changed([](GpuProduct& p) { p.rows = 24; }));
  EXPECT_FALSE(changed([](GpuProduct& p) { p.columns = 8; }));
  EXPECT_FALSE(changed([](GpuProduct& p) { p.depth = 40; }));
  EXPECT_FALSE(changed([](GpuProduct& p) { p.b.transposed = false; }));
  EXPECT_FALSE(changed([](GpuProduct& p) { p.a.transposed = true; }));
  EXPECT_FALSE(changed([](GpuProduct& p) { p.a.data = p.a.data.from(8); }));
  EXPECT_FALSE(changed([](GpuProduct& p) { p.to = p.to.from(1); }));
  EXPECT_FALSE(changed([](GpuProduct& p) { p.to_stride = 17; }));
  EXPECT_FALSE(changed([](GpuProduct& p) { p.fp8.a = p.fp8.b = kE5M2; }));
  EXPECT_FALSE(changed([&](GpuProduct& p) { p.to = half.gpu(); }));
}

}  // namespace
}  // namespace aliquot::test
