// Tests the two parts of a split backward on the host.
#include <gtest/gtest.h>

#include "apps/models/make_model.h"
#include "kernels/device/device.h"
#include "kernels/system/thread_pool.h"
#include "tests/apps/models/split_backward_bits.h"

namespace aliquot::test {
namespace {

struct ModelCase {
  const char* name;
  ModelShape shape;
};

// Most dimensions are not multiples of the SIMD width. The gradient of a block's first norm is stored over its
// queries, keys and values if it fits there. It fits in every data type for GPT-2, and for example only in fp32 for
// Llama, and in none for Qwen3WithBiases.
const ModelCase kCases[] = {
    {"Gpt2", {ModelFamily::kGpt2, 2, 21, 3, 3, 35, 80, 37}},
    {"Llama", {ModelFamily::kLlama, 2, 36, 6, 2, 35, 80, 37}},
    {"LlamaWithSeparateHead", {ModelFamily::kLlama, 1, 24, 2, 1, 19, 80, 37, {}, false}},
    {"Qwen2", {ModelFamily::kLlama, 2, 36, 6, 2, 35, 80, 37, {}, true, 1e-5, 0, true, false, false, 9, {false, true}}},
    {"Qwen3", {ModelFamily::kLlama, 1, 36, 6, 2, 35, 80, 37, {}, true, 1e-5, 10, false, false, true}},
    {"Qwen3WithBiases", {ModelFamily::kLlama, 1, 36, 3, 1, 19, 80, 37, {}, false, 1e-5, 4, true, true, true, 5}},
};

class SplitBackward : public testing::TestWithParam<std::tuple<ModelCase, DType>> {
 protected:
  const ModelShape& shape() const { return std::get<0>(GetParam()).shape; }
  DType compute() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Models, SplitBackward,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::string(name(std::get<1>(test.param)));
                         });

TEST_P(SplitBackward, PartsGiveTheBitsOfTheWholeBackward) {
  const auto device = make_host_device(1);
  const auto stream = device->make_stream(Lane::kCompute);
  ThreadPool pool(2);
  const auto backend = make_host_backend(pool);
  expect_equal_bits(*device, *stream, *backend, shape(), compute(), 67);  // attention has two strips
}

/// The bytes of `count` elements, rounded up to the alignment of arrays.
int64_t array_bytes(int64_t count, DType type) { return (count * element_bytes(type) + 63) / 64 * 64; }

TEST_P(SplitBackward, WeightInputsHaveExactSizes) {
  ThreadPool pool(1);
  const auto backend = make_host_backend(pool);
  const auto model = make_model(
      shape(), {.batch = 2, .sequence = 67, .compute = compute(), .gradient_type = DType::kBFloat16}, *backend);
  const int64_t rows = 2 * 67, width = shape().width, qkv_width = shape().query_width() + 2 * shape().key_width();
  const bool reuses_qkv = qkv_width * element_bytes(compute()) >= width * 4;
  const int64_t norm_tensors = shape().family == ModelFamily::kGpt2 ? 4 : 2;
  const int64_t expected = array_bytes(rows * shape().hidden, compute()) + 2 * array_bytes(rows * width, compute()) +
                           array_bytes(rows * qkv_width, compute()) +
                           (reuses_qkv ? 1 : 2) * array_bytes(rows * width, DType::kFloat32) +
                           norm_tensors * array_bytes(width, compute()) +
                           (shape().qk_norm ? array_bytes(2 * shape().head_width(), DType::kFloat32) : 0);
  const auto uses = model->activations().uses;
  for (size_t use = 0; use < uses.size(); ++use) {
    const std::string unit = model->units()[static_cast<size_t>(model->uses()[use])].name;
    const bool is_block = unit.starts_with("h.") || unit.starts_with("model.layers.");
    EXPECT_EQ(uses[use].splits_backward, is_block) << unit;
    EXPECT_EQ(uses[use].weight_inputs_bytes, is_block ? expected : 0) << unit;
  }
}

}  // namespace
}  // namespace aliquot::test
