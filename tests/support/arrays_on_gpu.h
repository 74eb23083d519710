#pragma once
// A fixture for tests that compare work on a GPU with work on the host.

#include <cstdint>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "tests/support/mirrored_array.h"
#include "tests/support/random_values.h"

namespace aliquot::test {

using Array = MirroredArray;

/// Skips all tests without a GPU. The parameter is the type of the tested layer.
class ArraysOnGpu : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this build finds no usable GPU, so the layers were only compiled";
    device_ = make_cuda_device(0);
    stream_ = device_->make_stream(Lane::kCompute);
  }

  DType type() const { return GetParam(); }
  Array array(const std::vector<float>& values, DType type = DType::kFloat32) {
    return {*device_, *stream_, values, type};
  }
  Array random(int64_t count, DType type = DType::kFloat32, float scale = 1.0f) {
    return array(random_.floats(count, scale), type);
  }
  Array zeros(int64_t count, DType type = DType::kFloat32) {
    return array(std::vector<float>(static_cast<size_t>(count)), type);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  RandomValues random_{11};
};

inline const auto kComputeTypes = testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16);
inline std::string type_name(const testing::TestParamInfo<DType>& tested) { return std::string(name(tested.param)); }

}  // namespace aliquot::test
