// Tests the two parts of a split backward on a GPU.
#include <gtest/gtest.h>

#include "apps/models/cuda/backend_cuda.h"
#include "kernels/device/device.h"
#include "tests/apps/models/split_backward_bits.h"
#include "tests/support/all_cases.h"

namespace aliquot::test {
namespace {

// The last kind is a Llama with all variations.
constexpr const char *kGpt2 = "Gpt2", *kLlama = "Llama", *kVaried = "Varied";

class SplitBackwardOnGpu : public testing::TestWithParam<std::tuple<const char*, DType>> {};

std::vector<std::tuple<const char*, DType>> models_and_types() {
  std::vector<std::tuple<const char*, DType>> selected;
  CaseSelection selection(2);
  for (const char* kind : {kGpt2, kLlama, kVaried}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      if (selection.next()) selected.emplace_back(kind, type);
    }
  }
  return selected;
}

INSTANTIATE_TEST_SUITE_P(Models, SplitBackwardOnGpu, testing::ValuesIn(models_and_types()), [](const auto& test) {
  return std::string(std::get<0>(test.param)) + "_" + std::string(name(std::get<1>(test.param)));
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
