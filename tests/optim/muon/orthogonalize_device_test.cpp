// Checks that orthogonalization gives the same bits on the calling thread, on worker threads and, in fp32, on GPUs.

#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <string>

#include "optim/muon/orthogonalize.h"
#include "tests/optim/shard.h"
#include "tests/support/all_close.h"

namespace aliquot {
namespace {

struct DeviceFactory {
  const char* name;
  std::function<std::unique_ptr<Device>()> make;
  Lane lane;
};

class OrthogonalizeOnDevice : public testing::TestWithParam<DeviceFactory> {};

std::vector<float> noise(const MatrixShape& shape) {
  std::mt19937 random(static_cast<unsigned>(shape.rows * 1000 + shape.columns));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(shape.rows * shape.columns));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> on_host(std::vector<float> matrix, const MatrixShape& shape, const Muon& muon) {
  std::vector<double> scratch(static_cast<size_t>(orthogonalize_scratch_bytes(shape)) / sizeof(double));
  ThreadPool pool(1);
  orthogonalize_on_host({muon, matrix.data(), shape, reinterpret_cast<std::byte*>(scratch.data())}, pool);
  return matrix;
}

std::vector<float> on_device(Device& device, Stream& stream, std::vector<float> matrix, const MatrixShape& shape,
                             const Muon& muon) {
  const auto size_bytes = static_cast<int64_t>(matrix.size() * sizeof(float));
  const Buffer on_device_buffer = device.allocate(size_bytes, Category::kStaging, "matrix");
  const Buffer scratch = device.allocate(orthogonalize_scratch_bytes(shape), Category::kStaging, "scratch");
  device.kernels().copy(stream, on_device_buffer.data(), matrix.data(), size_bytes);
  const auto orthogonalizer = make_orthogonalizer(device, muon.products);
  orthogonalizer->orthogonalize(stream, {muon, on_device_buffer.as<float>(), shape, scratch.data()});
  device.kernels().copy(stream, matrix.data(), on_device_buffer.data(), size_bytes);
  stream.synchronize();
  return matrix;
}

TEST_P(OrthogonalizeOnDevice, GivesTheBitsOfTheHost) {
  if (GetParam().name == std::string("cuda") && cuda_device_count() == 0)
    GTEST_SKIP() << "no usable GPU: the kernel is compiled but not run";
  const auto device = GetParam().make();
  const auto stream = device->make_stream(GetParam().lane);
  for (const MatrixShape& shape :
       std::vector<MatrixShape>{{1, 1}, {1, 300}, {300, 1}, {64, 64}, {65, 200}, {200, 63}, {97, 131}, {256, 1024}}) {
    for (const DType products : {DType::kFloat32, DType::kBFloat16}) {
      const Muon muon{.products = products};
      const auto matrix = noise(shape), got = on_device(*device, *stream, matrix, shape, muon);
      const auto expected = on_host(matrix, shape, muon);
      SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << " in " << name(products));
      // The simulated cuBLASLt adds in the order of the host. That of a real GPU does not.
      const bool on_gpu = device->kind() == DeviceKind::kCuda && !device->describe().starts_with("simulated");
      if (on_gpu && products == DType::kBFloat16) {
        EXPECT_TRUE(test::all_close(got, {expected.begin(), expected.end()}, 0.05));
      } else {
        EXPECT_TRUE(same_bits(got, expected));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, OrthogonalizeOnDevice,
                         testing::Values(DeviceFactory{"inline", [] { return make_host_device(2); }, Lane::kCompute},
                                         DeviceFactory{"worker", [] { return make_host_device(3); }, Lane::kReduce},
                                         DeviceFactory{"cuda", [] { return make_cuda_device(0); }, Lane::kCompute}),
                         [](const auto& maker) { return maker.param.name; });

}  // namespace
}  // namespace aliquot
