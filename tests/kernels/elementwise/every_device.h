#pragma once
// A fixture for tests of kernels on every device, and arrays in the memory of a device.

#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <string>

#include "kernels/device/device.h"
#include "kernels/elementwise/kernels.h"
#include "tests/kernels/elementwise/loops_data.h"

namespace aliquot {

struct DeviceFactory {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
  Lane lane;
};

class EveryDevice : public testing::TestWithParam<DeviceFactory> {
 protected:
  void SetUp() override {
    if (GetParam().name == "cuda" && cuda_device_count() == 0) {
      GTEST_SKIP() << "no usable GPU: the CUDA kernels are compiled but not run";
    }
    device_ = GetParam().make();
    stream_ = device_->make_stream(GetParam().lane);
  }

  const Kernels& kernels() const { return device_->kernels(); }
  Stream& stream() { return *stream_; }
  const HostLoops& plain() const { return host_loops(Isa::kPlain); }

  template <typename Work>
  void for_shapes(Work work) {
    for (const int64_t count : kCounts) {
      for (const int64_t misaligned : {0, 1, 3}) work(count, misaligned);
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

/// A copy of a host array on the device, with the same misalignment and guards. fetch() copies it back and checks the
/// guards.
class DeviceArray {
 public:
  DeviceArray(Device& device, Stream& stream, Elements& host)
      : device_(device),
        stream_(stream),
        host_(host),
        buffer_(device.allocate(host.size_bytes() + 256, Category::kStaging, "test")) {
    const auto past_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(host.data()) % 64);
    start_ = buffer_.data() + past_line;
    device_.kernels().copy(stream_, start_, host_.data() - kGuardBytes, host_.size_bytes() + 2 * kGuardBytes);
    stream_.synchronize();
  }

  std::byte* data() { return start_ + kGuardBytes; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }

  void fetch() {
    device_.kernels().copy(stream_, host_.data() - kGuardBytes, start_, host_.size_bytes() + 2 * kGuardBytes);
    stream_.synchronize();
    EXPECT_TRUE(host_.guards_intact());
  }

 private:
  static constexpr int64_t kGuardBytes = 64;
  Device& device_;
  Stream& stream_;
  Elements& host_;
  Buffer buffer_;
  std::byte* start_ = nullptr;
};

inline const auto kDevices =
    testing::Values(DeviceFactory{"host_compute", [] { return make_host_device(1); }, Lane::kCompute},
                    DeviceFactory{"host_threads", [] { return make_host_device(3); }, Lane::kCompute},
                    DeviceFactory{"host_worker", [] { return make_host_device(2); }, Lane::kReduce},
                    DeviceFactory{"cuda", [] { return make_cuda_device(0); }, Lane::kCompute});

}  // namespace aliquot
