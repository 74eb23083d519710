// Compares the linear layers of blocks with fp8 operands on a GPU with sums in double of the quantized operands.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <vector>

#include "apps/models/cuda/backend_cuda.h"
#include "kernels/device/device.h"
#include "kernels/formats/float8.h"
#include "kernels/gemm/product_scratch.h"
#include "kernels/system/error.h"
#include "tests/support/all_close.h"
#include "tests/support/mirrored_array.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

using Array = MirroredArray;
constexpr DType kBf16 = DType::kBFloat16;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) { return (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4; }

/// A matrix in double.
struct Plain {
  int64_t rows, columns;
  std::vector<double> values;
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
};

Plain transposed(const Plain& m) {
  Plain to{m.columns, m.rows, {}};
  for (int64_t c = 0; c < m.columns; ++c) {
    for (int64_t r = 0; r < m.rows; ++r) to.values.push_back(m.at(r, c));
  }
  return to;
}

Plain multiplied(const Plain& a, const Plain& b) {
  Plain to{a.rows, b.columns, {}};
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < b.columns; ++c) {
      double sum = 0;
      for (int64_t k = 0; k < a.columns; ++k) sum += a.at(r, k) * b.at(k, c);
      to.values.push_back(sum);
    }
  }
  return to;
}

/// The matrix that a product with fp8 operands reads.
Plain quantized(const Plain& m, Fp8Format format) {
  double largest = 0;
  for (const double value : m.values) largest = std::max(largest, std::abs(value));
  const float scale = fp8_scale(static_cast<float>(largest), format);
  Plain to{m.rows, m.columns, {}};
  for (const double value : m.values)
    to.values.push_back(fp8_to_float(float_to_fp8(static_cast<float>(value) * scale, format), format) / scale);
  return to;
}

class Fp8Layers : public testing::Test {
 protected:
  static constexpr int64_t kRows = 32, kCopyBytes = 1 << 16;

  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this build finds no usable GPU, so the layers were only compiled";
    device_ = make_cuda_device(0);
    stream_ = device_->make_stream(Lane::kCompute);
    try {
      gpu_ = make_cuda_backend(*device_, {.rounding = OperandRounding::kFp8});
    } catch (const UnavailableError& error) {
      GTEST_SKIP() << error.what();
    }
    gpu_->compute_on(*stream_);
    product_scratch_ = allocate(kGpuProductScratchBytes);
    for (const int64_t bytes : {kFp8PartialMaxima * 4, kFp8FactorCount * 4, kCopyBytes, kCopyBytes, kCopyBytes})
      memory_.push_back(allocate(bytes));
    fp8_ = {memory_[0].as<uint32_t>(), memory_[1].as<float>(), memory_[2].as<uint8_t>(), memory_[3].as<uint8_t>(),
            memory_[4].as<uint8_t>()};
  }

  Buffer allocate(int64_t bytes) { return device_->allocate(bytes, Category::kStaging, "test"); }
  Array random(int64_t count, DType type = kBf16, float scale = 1.0f) {
    return {*device_, *stream_, random_.floats(count, scale), type};
  }
  Linear layer(Array& weight, int64_t inputs, int64_t outputs, bool outputs_first) {
    return {.weight = weight.gpu(),
            .bias = {},
            .rows = kRows,
            .inputs = inputs,
            .outputs = outputs,
            .outputs_first = outputs_first,
            .scratch = product_scratch_.as<float>(),
            .fp8 = {.scratch = &fp8_}};
  }
  static testing::AssertionResult close(Array& got, const Plain& expected) {
    return all_close(got.on_gpu(), expected.values, std::max(1e-5, 2 * rounding_tolerance(got.gpu().type)));
  }

  void check_layer(int64_t inputs, int64_t outputs, bool outputs_first);
  void check_gradients(const Linear& l, Array& x, Array& from, const Plain& weight);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Backend> gpu_;
  Buffer product_scratch_;
  std::vector<Buffer> memory_;
  Fp8Scratch fp8_;
  RandomValues random_{31};
};

/// `weight` is [inputs, outputs].
void Fp8Layers::check_gradients(const Linear& l, Array& x, Array& from, const Plain& weight) {
  Array d_x = random(l.rows * l.inputs, DType::kFloat32), d_gelu = random(l.rows * l.inputs);
  Array before_gelu = random(l.rows * l.inputs), d_weight = random(l.inputs * l.outputs, DType::kFloat32);
  Array d_bias = random(l.outputs, DType::kFloat32);
  const Plain gradient{l.rows, l.outputs, from.on_host()}, e5m2 = quantized(gradient, Fp8Format::kE5M2);
  const Plain input = quantized({l.rows, l.inputs, x.on_host()}, Fp8Format::kE4M3);
  const Plain to_input = multiplied(e5m2, transposed(weight));
  const Plain of_weight = l.outputs_first ? multiplied(transposed(e5m2), input) : multiplied(transposed(input), e5m2);
  Plain through_gelu = to_input, added = to_input;
  const auto at = before_gelu.on_host();
  for (size_t i = 0; i < at.size(); ++i) {
    through_gelu.values[i] *= gelu_slope(at[i]);
    added.values[i] *= 2;
  }
  Plain of_bias{1, l.outputs, std::vector<double>(static_cast<size_t>(l.outputs))};
  for (size_t i = 0; i < gradient.values.size(); ++i)
    of_bias.values[i % static_cast<size_t>(l.outputs)] += gradient.values[i];

  gpu_->linear_backward_weights(l, x.gpu(), from.gpu(), {d_weight.gpu(), d_bias.gpu(), false});
  EXPECT_TRUE(close(d_weight, of_weight));
  EXPECT_TRUE(close(d_bias, of_bias));
  gpu_->linear_backward_input(l, from.gpu(), d_x.gpu(), false);
  EXPECT_TRUE(close(d_x, to_input));
  gpu_->linear_backward_input(l, from.gpu(), d_x.gpu(), true);
  EXPECT_TRUE(close(d_x, added));
  gpu_->linear_gelu_backward_input(l, from.gpu(), before_gelu.gpu(), d_gelu.gpu());
  EXPECT_TRUE(close(d_gelu, through_gelu));
  gpu_->linear_backward_weights(l, x.gpu(), from.gpu(), {d_weight.gpu(), d_bias.gpu(), true});
  Plain twice = of_weight;
  for (double& value : twice.values) value *= 2;
  EXPECT_TRUE(close(d_weight, twice));
}

void Fp8Layers::check_layer(int64_t inputs, int64_t outputs, bool outputs_first) {
  SCOPED_TRACE(testing::Message() << inputs << " to " << outputs << (outputs_first ? ", outputs first" : ""));
  // Operands of different sizes have different scales.
  Array x = random(kRows * inputs, kBf16, 3), matrix = random(inputs * outputs, kBf16, 0.02f);
  Array from = random(kRows * outputs, kBf16, 1e-4f), bias = random(outputs, kBf16, 0.1f);
  Array residual = random(kRows * outputs, DType::kFloat32), to = random(kRows * outputs, DType::kFloat32);
  Array before = random(kRows * outputs), after = random(kRows * outputs);
  Linear l = layer(matrix, inputs, outputs, outputs_first);
  l.bias = bias.gpu();
  const Plain stored =
      outputs_first ? Plain{outputs, inputs, matrix.on_host()} : Plain{inputs, outputs, matrix.on_host()};
  const Plain weight = quantized(outputs_first ? transposed(stored) : stored, Fp8Format::kE4M3);
  Plain sums = multiplied(quantized({kRows, inputs, x.on_host()}, Fp8Format::kE4M3), weight);
  Plain with_residual = sums, activated = sums;
  const auto of_column = bias.on_host(), more = residual.on_host();
  for (size_t i = 0; i < sums.values.size(); ++i) {
    sums.values[i] += of_column[i % static_cast<size_t>(outputs)];
    with_residual.values[i] = sums.values[i] + more[i];
    activated.values[i] = gelu(sums.values[i]);
  }
  gpu_->linear_forward(l, x.gpu(), residual.gpu_as<float>(), to.gpu());
  EXPECT_TRUE(close(to, with_residual));
  gpu_->linear_gelu_forward(l, x.gpu(), before.gpu(), after.gpu(), true);
  EXPECT_TRUE(close(before, sums));
  EXPECT_TRUE(close(after, activated));
  check_gradients(l, x, from, weight);
}

/// The simulated cuBLASLt has no epilogues for 48 to 95 outputs.
TEST_F(Fp8Layers, MatchSumsOfQuantizedOperands) {
  for (const bool outputs_first : {false, true}) {
    check_layer(48, 32, outputs_first);
    check_layer(32, 64, outputs_first);
    check_layer(64, 112, outputs_first);
  }
}

/// Layers with one input reuse its copy, and backward reuses the copies of gradients. This changes no bit.
TEST_F(Fp8Layers, ShareCopiesOfOperands) {
  const int64_t inputs = 48;
  Array x = random(kRows * inputs), more = random(kRows * inputs, kBf16, 5);
  Array weights = random(3 * inputs * 32), gradients = random(3 * kRows * 32, kBf16, 1e-3f);
  Array more_gradients = random(3 * kRows * 32);
  const auto run = [&](Array& input, bool shares, std::vector<std::vector<double>>& results) {
    std::vector<Array> to, d_weight, d_x;
    std::vector<Linear> layers;
    for (int64_t i = 0; i < 3; ++i) {
      to.push_back(random(kRows * 32));
      d_weight.push_back(random(inputs * 32, DType::kFloat32));
      d_x.push_back(random(kRows * inputs, DType::kFloat32));
      layers.push_back(layer(weights, inputs, 32, true));
      layers.back().weight = weights.gpu().from(i * inputs * 32);
      if (shares) layers.back().fp8 = {&fp8_, i, 32 * i, i > 0, true};
    }
    for (size_t i = 0; i < 3; ++i) gpu_->linear_forward(layers[i], input.gpu(), nullptr, to[i].gpu());
    const auto from = [&](size_t i) { return gradients.gpu().from(static_cast<int64_t>(i) * kRows * 32); };
    for (size_t i = 0; i < 3; ++i)
      gpu_->linear_backward_weights(layers[i], input.gpu(), from(i), {d_weight[i].gpu(), nullptr, false});
    for (size_t i = 0; i < 3; ++i) gpu_->linear_backward_input(layers[i], from(i), d_x[i].gpu(), false);
    for (auto* arrays : {&to, &d_weight, &d_x}) {
      for (Array& array : *arrays) results.push_back(array.on_gpu());
    }
  };
  std::vector<std::vector<double>> alone, shared, other_alone, other_shared;
  run(x, false, alone);
  run(x, true, shared);
  EXPECT_EQ(shared, alone);
  // The same addresses with other values, as in the next block.
  device_->kernels().copy(*stream_, x.gpu().data, more.gpu().data, kRows * inputs * 2);
  device_->kernels().copy(*stream_, gradients.gpu().data, more_gradients.gpu().data, 3 * kRows * 32 * 2);
  run(x, false, other_alone);
  run(x, true, other_shared);
  EXPECT_EQ(other_shared, other_alone);
  EXPECT_NE(other_shared, shared);
}

/// Two calls get the same address with other values, and no other call is between them.
TEST_F(Fp8Layers, QuantizeNewValuesAtTheSameAddress) {
  Array x = random(kRows * 48), more = random(kRows * 48), weight = random(48 * 32);
  Array first = random(kRows * 32), second = random(kRows * 32), other = random(kRows * 32);
  const Linear l = layer(weight, 48, 32, true);
  gpu_->linear_forward(l, more.gpu(), nullptr, other.gpu());
  gpu_->linear_forward(l, x.gpu(), nullptr, first.gpu());
  device_->kernels().copy(*stream_, x.gpu().data, more.gpu().data, kRows * 48 * 2);
  gpu_->linear_forward(l, x.gpu(), nullptr, second.gpu());
  EXPECT_NE(second.on_gpu(), first.on_gpu());
  EXPECT_EQ(second.on_gpu(), other.on_gpu());
}

/// A layer whose extents are no multiples of 16 has the bits of a backend without fp8. So does a layer outside of
/// blocks.
TEST_F(Fp8Layers, FallBackToBf16) {
  const auto plain = make_cuda_backend(*device_);
  plain->compute_on(*stream_);
  for (const auto& [inputs, outputs] : {std::pair{40, 32}, std::pair{32, 24}, std::pair{32, 32}}) {
    Array x = random(kRows * inputs), weight = random(inputs * outputs), from = random(kRows * outputs);
    Linear l = layer(weight, inputs, outputs, false);
    if (inputs == outputs) l.fp8 = {};
    std::vector<std::vector<double>> results[2];
    for (Backend* backend : {gpu_.get(), plain.get()}) {
      Array to = random(kRows * outputs), d_x = random(kRows * inputs), d_weight = random(inputs * outputs);
      backend->linear_forward(l, x.gpu(), nullptr, to.gpu());
      backend->linear_backward_weights(l, x.gpu(), from.gpu(), {d_weight.gpu(), nullptr, false});
      backend->linear_backward_input(l, from.gpu(), d_x.gpu(), false);
      results[backend == plain.get()] = {to.on_gpu(), d_x.on_gpu(), d_weight.on_gpu()};
    }
    EXPECT_EQ(results[0], results[1]) << inputs << " to " << outputs;
  }
}

TEST_F(Fp8Layers, PassOnNanAndInfinity) {
  const int64_t inputs = 32, outputs = 48;
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = random_.floats(kRows * outputs);
    values[5 * outputs + 7] = bad;
    Array from(*device_, *stream_, values, kBf16), x = random(kRows * inputs), weight = random(inputs * outputs);
    Array d_x = random(kRows * inputs, DType::kFloat32), d_weight = random(inputs * outputs, DType::kFloat32);
    const Linear l = layer(weight, inputs, outputs, true);
    gpu_->linear_backward_weights(l, x.gpu(), from.gpu(), {d_weight.gpu(), nullptr, false});
    gpu_->linear_backward_input(l, from.gpu(), d_x.gpu(), false);
    const auto to_input = d_x.on_gpu(), of_weight = d_weight.on_gpu();
    EXPECT_FALSE(std::isfinite(to_input[5 * inputs]));
    EXPECT_FALSE(std::isfinite(of_weight[7 * inputs]));
    EXPECT_TRUE(std::isfinite(to_input[4 * inputs]));
  }
}

}  // namespace
}  // namespace aliquot::test
