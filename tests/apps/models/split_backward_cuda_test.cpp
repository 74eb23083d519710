// Tests the two parts of a split backward on a GPU.
#include <gtest/gtest.h>

#include "apps/models/cuda/backend_cuda.h"
#include "kernels/device/device.h"
#include "tests/apps/models/split_backward_bits.h"

namespace aliquot::test {
namespace {

// The last kind is a Llama with all variations.
constexpr const char *kGpt2 = "Gpt2", *kLlama = "Llama", *kVaried = "Varied";

class SplitBackwardOnGpu : public testing::TestWithParam<std::tuple<const char*, DType>> {};
INSTANTIATE_TEST_SUITE_P(Models, SplitBackwardOnGpu,
                         testing::Combine(testing::Values(kGpt2, kLlama, kVaried),
                                          testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" +
                                  std::string(name(std::get<1>(test.param)));
                         });

TEST_P(SplitBackwardOnGpu, PartsGiveTheBitsOfTheWholeBackward) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "this build finds no usable GPU, so the models were only compiled";
  const auto& [kind, compute] = GetParam();
  ModelShape shape{.family = kind == kGpt2 ? ModelFamily::kGpt2 : ModelFamily::kLlama,
                   .layers = 1,
                   .width = 32,
                   .heads = 4,
                   .kv_heads = kind == kGpt2 ? 4 : 2,
                   .hidden = 48,
                   .context = 8,
                   .vocabulary = 37};
  if (kind == kVaried) {
    shape.own_head_width = 10;
    shape.qkv_bias = shape.output_bias = shape.qk_norm = true;
    shape.window = 3;
  }
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream(Lane::kCompute);
  const auto backend = make_cuda_backend(*device);
  backend->compute_on(*stream);
  expect_equal_bits(*device, *stream, *backend, shape, compute, 7);
}

}  // namespace
}  // namespace aliquot::test
