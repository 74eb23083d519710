// Tests the two parts of a split backward on a GPU.
#include <gtest/gtest.h>

#include "apps/models/cuda/backend_cuda.h"
#include "kernels/device/device.h"
#include "tests/apps/models/split_backward_bits.h"

namespace aliquot::test {
namespace {

class SplitBackwardOnGpu : public testing::TestWithParam<std::tuple<ModelFamily, DType>> {};
INSTANTIATE_TEST_SUITE_P(Models, SplitBackwardOnGpu,
                         testing::Combine(testing::Values(ModelFamily::kGpt2, ModelFamily::kLlama),
                                          testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16)),
                         [](const auto& test) {
                           const bool gpt2 = std::get<0>(test.param) == ModelFamily::kGpt2;
                           return (gpt2 ? "Gpt2_" : "Llama_") + std::string(name(std::get<1>(test.param)));
                         });

TEST_P(SplitBackwardOnGpu, PartsGiveTheBitsOfTheWholeBackward) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "this build finds no usable GPU, so the models were only compiled";
  const auto& [family, compute] = GetParam();
  const ModelShape shape{.family = family,
                         .layers = 1,
                         .width = 32,
                         .heads = 4,
                         .kv_heads = family == ModelFamily::kLlama ? 2 : 4,
                         .hidden = 48,
                         .context = 8,
                         .vocabulary = 37};
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream(Lane::kCompute);
  const auto backend = make_cuda_backend(*device);
  backend->compute_on(*stream);
  expect_equal_bits(*device, *stream, *backend, shape, compute, 7);
}

}  // namespace
}  // namespace aliquot::test
