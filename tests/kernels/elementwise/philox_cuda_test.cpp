#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/formats/philox.h"
#include "tests/kernels/elementwise/shared_functions_cuda.h"

namespace aliquot {
namespace {

TEST(PhiloxCuda, DrawsTheSameBitsAsTheHost) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU: the kernel is compiled but not run";
  constexpr int64_t kCount = 1'000'000;
  const RandomKey key{.seed = 0x0123456789abcdefu, .step = 7, .parameter = 11};
  const std::unique_ptr<Device> device = make_cuda_device(0);
  const std::unique_ptr<Stream> stream = device->make_stream(Lane::kCompute);
  const Buffer buffer = device->allocate(kCount * 4, Category::kStaging, "test");
  draw_normals_cuda(*stream, buffer.as<float>(), key, kCount);
  std::vector<float> drawn(kCount), expected(kCount);
  device->kernels().copy(*stream, drawn.data(), buffer.data(), kCount * 4);
  stream->synchronize();
  for (int64_t i = 0; i < kCount; ++i) expected[static_cast<std::size_t>(i)] = random_normal(key, i);
  EXPECT_EQ(std::memcmp(drawn.data(), expected.data(), kCount * 4), 0);
}

}  // namespace
}  // namespace aliquot
