#pragma once
// A fixture for tests that compare the layers of a GPU with those of a host.

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/cuda/backend_cuda.h"
#include "kernels/device/device.h"
#include "tests/support/mirrored_array.h"
#include "tests/support/random_values.h"

namespace aliquot::test {

using Array = MirroredArray;

/// The parameter is the compute type.
class BackendOnGpu : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this build finds no usable GPU, so the layers were only compiled";
    device_ = make_cuda_device(0);
    stream_ = device_->make_stream(Lane::kCompute);
    gpu_ = make_cuda_backend(*device_);
    gpu_->compute_on(*stream_);
    host_ = make_host_backend(pool_);
  }

  DType type() const { return GetParam(); }
  Array random(int64_t count, DType type = DType::kFloat32, float scale = 1.0f) {
    return {*device_, *stream_, random_.floats(count, scale), type};
  }
  Array zeros(int64_t count, DType type = DType::kFloat32) {
    return {*device_, *stream_, std::vector<float>(static_cast<size_t>(count)), type};
  }
  TokenBatch tokens(int64_t count, int64_t entries) {
    tokens_.clear();
    targets_.clear();
    for (int64_t i = 0; i < count; ++i) {
      tokens_.push_back(static_cast<int32_t>(random_.bits() % static_cast<uint64_t>(entries)));
      targets_.push_back(static_cast<int32_t>(random_.bits() % static_cast<uint64_t>(entries)));
    }
    return {tokens_, targets_};
  }
  Array product_scratch() {
    return zeros(
        std::max(gpu_->product_scratch_elements(type(), type()), host_->product_scratch_elements(type(), type())));
  }

  ThreadPool pool_{1};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Backend> gpu_, host_;
  RandomValues random_{11};
  std::vector<int32_t> tokens_, targets_;
};

inline const auto kComputeTypes = testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16);
inline std::string type_name(const testing::TestParamInfo<DType>& tested) { return std::string(name(tested.param)); }

}  // namespace aliquot::test
