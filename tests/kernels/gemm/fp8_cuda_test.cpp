// Compares the quantization to fp8 on a GPU with plain loops.
#include "kernels/gemm/fp8_cuda.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/gemm/product_scratch.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

struct Extents {
  int64_t rows, columns, stride;
};

class Fp8OnGpu : public testing::TestWithParam<Fp8Format> {
 protected:
  struct Copies {
    std::vector<uint8_t> to, transposed;
    float inverse_scale = 0;
  };

  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this build finds no usable GPU, so the kernels were only compiled";
    device_ = make_cuda_device(0);
    stream_ = device_->make_stream(Lane::kCompute);
  }

  Fp8Format format() const { return GetParam(); }

  /// A matrix whose elements between rows are huge, so that reading them changes the scale.
  static std::vector<uint16_t> matrix(const Extents& of, const std::function<float(int64_t)>& value) {
    std::vector<uint16_t> made(static_cast<size_t>(of.rows * of.stride), float_to_bf16(1e30f));
    for (int64_t r = 0; r < of.rows; ++r) {
      for (int64_t c = 0; c < of.columns; ++c)
        made[static_cast<size_t>(r * of.stride + c)] = float_to_bf16(value(r * of.columns + c));
    }
    return made;
  }
  std::vector<uint16_t> random_matrix(const Extents& of, float scale) {
    return matrix(of, [&](int64_t) { return static_cast<float>(random_.normal()) * scale; });
  }

  Copies expected(const Extents& of, const std::vector<uint16_t>& from) const {
    float largest = 0;
    const auto at = [&](int64_t r, int64_t c) { return bf16_to_float(from[static_cast<size_t>(r * of.stride + c)]); };
    for (int64_t r = 0; r < of.rows; ++r) {
      for (int64_t c = 0; c < of.columns; ++c) {
        // std::max() could ignore NaN.
        if (std::isnan(at(r, c)) || std::abs(at(r, c)) > largest) largest = std::abs(at(r, c));
      }
    }
    const float scale = fp8_scale(largest, format());
    Copies copies{{}, {}, 1 / scale};
    for (int64_t r = 0; r < of.rows; ++r) {
      for (int64_t c = 0; c < of.columns; ++c) copies.to.push_back(float_to_fp8(at(r, c) * scale, format()));
    }
    for (int64_t c = 0; c < of.columns; ++c) {
      for (int64_t r = 0; r < of.rows; ++r)
        copies.transposed.push_back(copies.to[static_cast<size_t>(r * of.columns + c)]);
    }
    return copies;
  }

  Copies on_gpu(const Extents& of, const std::vector<uint16_t>& from, bool plain, bool transposed) {
    const int64_t count = of.rows * of.columns;
    const Buffer matrix = buffer(of.rows * of.stride * 2), to = buffer(count), across = buffer(count),
                 scale = buffer(sizeof(float)), maxima = buffer(kFp8PartialMaxima * 4);
    const Kernels& kernels = device_->kernels();
    kernels.copy(*stream_, matrix.data(), from.data(), of.rows * of.stride * 2);
    cuda::quantize_fp8(*stream_, {.from = matrix.as<uint16_t>(),
                                  .rows = of.rows,
                                  .columns = of.columns,
                                  .stride = of.stride,
                                  .format = format(),
                                  .to = plain ? to.as<uint8_t>() : nullptr,
                                  .transposed = transposed ? across.as<uint8_t>() : nullptr,
                                  .inverse_scale = scale.as<float>(),
                                  .partial_maxima = maxima.as<uint32_t>()});
    Copies copies{std::vector<uint8_t>(plain ? static_cast<size_t>(count) : 0),
                  std::vector<uint8_t>(transposed ? static_cast<size_t>(count) : 0)};
    if (plain) kernels.copy(*stream_, copies.to.data(), to.data(), count);
    if (transposed) kernels.copy(*stream_, copies.transposed.data(), across.data(), count);
    kernels.copy(*stream_, &copies.inverse_scale, scale.data(), sizeof(float));
    stream_->synchronize();
    return copies;
  }
  Buffer buffer(int64_t bytes) { return device_->allocate(bytes, Category::kStaging, "test"); }

  void check(const Extents& of, const std::vector<uint16_t>& from) {
    SCOPED_TRACE(testing::Message() << of.rows << " x " << of.columns << ", stride " << of.stride);
    const Copies wanted = expected(of, from);
    for (const auto& [plain, transposed] : {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
      const Copies got = on_gpu(of, from, plain, transposed);
      EXPECT_EQ(got.inverse_scale, wanted.inverse_scale);
      if (plain) {
        EXPECT_EQ(got.to, wanted.to);
      }
      if (transposed) {
        EXPECT_EQ(got.transposed, wanted.transposed);
      }
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  RandomValues random_{17};
};

INSTANTIATE_TEST_SUITE_P(Formats, Fp8OnGpu, testing::Values(Fp8Format::kE4M3, Fp8Format::kE5M2),
                         [](const auto& tested) {
                           return std::string(tested.param == Fp8Format::kE4M3 ? "E4M3" : "E5M2");
                         });

TEST_P(Fp8OnGpu, QuantizesAndTransposes) {
  for (const Extents& of : {Extents{16, 16, 16}, Extents{64, 64, 64}, Extents{16, 208, 208}, Extents{144, 80, 88},
                            Extents{80, 64, 96}, Extents{192, 48, 48}}) {
    check(of, random_matrix(of, 3));
  }
}

TEST_P(Fp8OnGpu, ScalesByPowersOfTwo) {
  const Extents of{48, 32, 40};
  for (const float scale : {1e-30f, 0.1f, 1.0f, 1e4f, 1e20f}) check(of, random_matrix(of, scale));
  check(of, matrix(of, [](int64_t) { return 0.0f; }));
  check(of, matrix(of, [](int64_t i) { return i == 700 ? -0x1p-133f : 0.0f; }));  // the smallest bf16 magnitude
  check(of, matrix(of, [](int64_t i) { return i % 2 == 0 ? 3e38f : -1e-20f; }));
  // The largest element is in every place that a thread can read.
  for (int64_t at = 0; at < of.rows * of.columns; at += 37)
    check(of, matrix(of, [&](int64_t i) { return i == at ? 1000.0f : 0.01f; }));
}

TEST_P(Fp8OnGpu, KeepsNanAndInfinityVisible) {
  const Extents of{32, 48, 48};
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf("")}) {
    const auto values = matrix(of, [&](int64_t i) { return i == 100 ? bad : 0.5f; });
    check(of, values);
    const Copies copies = on_gpu(of, values, true, false);
    EXPECT_EQ(copies.to[100], kFp8Nan);
    EXPECT_EQ(copies.inverse_scale, 1.0f);
  }
}

TEST_P(Fp8OnGpu, RejectsExtentsAndAlignmentsWithoutWideLoads) {
  const Buffer memory = buffer(64);
  const cuda::Fp8Quantization fits{.from = memory.as<uint16_t>(), .rows = 16, .columns = 32, .stride = 40};
  EXPECT_TRUE(cuda::can_quantize_fp8(fits));
  const auto changed = [&](const auto& change) {
    cuda::Fp8Quantization other = fits;
    change(other);
    return cuda::can_quantize_fp8(other);
  };
  EXPECT_FALSE(changed([](auto& a) { a.rows = 0; }));
  EXPECT_FALSE(changed([](auto& a) { a.rows = 24; }));
  EXPECT_FALSE(changed([](auto& a) { a.columns = 24; }));
  EXPECT_FALSE(changed([](auto& a) { a.stride = 36; }));
  EXPECT_FALSE(changed([](auto& a) { a.from += 4; }));
}

}  // namespace
}  // namespace aliquot::test
