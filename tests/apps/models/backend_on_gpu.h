#pragma once
// A fixture for tests that compare the layers of a GPU with those of a host.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "apps/models/cuda/backend_cuda.h"
#include "tests/support/arrays_on_gpu.h"

namespace aliquot::test {

/// The parameter is the compute type.
class BackendOnGpu : public ArraysOnGpu {
 protected:
  void SetUp() override {
    ArraysOnGpu::SetUp();
    if (IsSkipped()) return;
    gpu_ = make_cuda_backend(*device_);
    gpu_->compute_on(*stream_);
    host_ = make_host_backend(pool_);
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
  std::unique_ptr<Backend> gpu_, host_;
  std::vector<int32_t> tokens_, targets_;
};

}  // namespace aliquot::test
