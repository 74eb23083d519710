#pragma once
// Arrays for tests that compare a GPU with the host.

#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/formats/values.h"
#include "tests/support/all_close.h"

namespace aliquot::test {

/// Host and GPU sum in fp32, in different orders. Results in 16 bits may differ by one rounding.
inline double rounding_tolerance(DType type) {
  if (type == DType::kFloat32) return 3e-6;
  return type == DType::kFloat16 ? 0x1p-10 : 0x1p-7;
}

/// An array that exists on the host and on the GPU.
class MirroredArray {
 public:
  MirroredArray(Device& device, Stream& stream, const std::vector<float>& values, DType type = DType::kFloat32)
      : stream_(stream), kernels_(device.kernels()), type_(type), count_(static_cast<int64_t>(values.size())) {
    host_.resize(static_cast<size_t>(count_ * element_bytes(type)) + 64);
    const auto host_device = make_host_device(1);
    const auto host_stream = host_device->make_stream(Lane::kCompute);
    host_device->kernels().cast(*host_stream, host_.data(), type, values.data(), DType::kFloat32, count_);
    buffer_ = device.allocate(static_cast<int64_t>(host_.size()), Category::kStaging, "test");
    kernels_.copy(stream_, buffer_.data(), host_.data(), count_ * element_bytes(type));
    stream_.synchronize();
  }

  Values host() { return {host_.data(), type_}; }
  Values gpu() { return {buffer_.data(), type_}; }
  template <class T>
  T* host_as() {
    return reinterpret_cast<T*>(host_.data());
  }
  template <class T>
  T* gpu_as() {
    return reinterpret_cast<T*>(buffer_.data());
  }

  std::vector<double> on_host() const { return widened(host_); }
  std::vector<double> on_gpu() {
    std::vector<std::byte> fetched(host_.size());
    kernels_.copy(stream_, fetched.data(), buffer_.data(), count_ * element_bytes(type_));
    stream_.synchronize();
    return widened(fetched);
  }
  testing::AssertionResult alike(double within) { return all_close(on_gpu(), on_host(), within); }
  testing::AssertionResult alike() { return alike(rounding_tolerance(type_)); }

 private:
  std::vector<double> widened(const std::vector<std::byte>& bytes) const {
    std::vector<float> values(static_cast<size_t>(count_));
    const auto host_device = make_host_device(1);
    const auto host_stream = host_device->make_stream(Lane::kCompute);
    host_device->kernels().cast(*host_stream, values.data(), DType::kFloat32, bytes.data(), type_, count_);
    return {values.begin(), values.end()};
  }

  Stream& stream_;
  const Kernels& kernels_;
  DType type_;
  int64_t count_;
  std::vector<std::byte> host_;
  Buffer buffer_;
};

}  // namespace aliquot::test
