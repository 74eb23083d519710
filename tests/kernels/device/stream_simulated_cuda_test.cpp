// Tests of streams and memory that use the simulated GPU: a fault of a real GPU would affect its other users, and a
// real GPU does not report memory that is freed too early.
#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <stdexcept>
#include <thread>

#include "kernels/device/device_cuda.h"
#include "kernels/system/error.h"
#include "tests/support/simulated/simulated_cuda.h"

namespace aliquot {
namespace {

TEST(FaultyGpu, HostWorkThrowsInsteadOfBlocking) {
  CudaDevice device(0);
  const auto stream = device.make_stream(Lane::kCompute);
  simulated::fault(cuda_stream(*stream));
  EXPECT_THROW(
      {
        // Enqueues more work than the stream's queue can hold.
        for (int i = 0; i < 1000; ++i) stream->run([] {});
      },
      FaultError);
  EXPECT_THROW(stream->synchronize(), FaultError);
}

void launch_slow_work(Stream& stream, std::atomic<bool>& done) {
  simulated::launch(cuda_stream(stream), [&done] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    done = true;
  });
}

/// When CUDA loads a kernel, it may wait for all work of the GPU. This work may be a collective of several ranks.
TEST(KernelModules, ADeviceLoadsTheKernelsOfAllRegisteredModules) {
  static const int kernel = 0;
  const auto loaded_by_a_device = [] {
    const int64_t before = simulated::loaded_kernels();
    make_cuda_device(0);
    return simulated::loaded_kernels() - before;
  };
  const int64_t without = loaded_by_a_device();
  register_kernel_module(&kernel);
  EXPECT_EQ(loaded_by_a_device(), without + simulated::kKernelsPerModule);
}

TEST(LifetimesOnGpu, AStreamIsDestroyedAfterItsWork) {
  CudaDevice device(0);
  std::atomic<bool> done = false;
  {
    const auto stream = device.make_stream(Lane::kCompute);
    launch_slow_work(*stream, done);
  }
  EXPECT_TRUE(done);
  cudaStream_t own = nullptr;
  check(cudaStreamCreate(&own), "making a stream");
  done = false;
  {
    const auto wrapped = wrap_cuda_stream(device, Lane::kCompute, own);
    launch_slow_work(*wrapped, done);
  }
  EXPECT_TRUE(done);
  check(cudaStreamDestroy(own), "destroying a stream");
}

TEST(LifetimesOnGpu, MemoryIsFreedAfterTheWorkThatMayUseIt) {
  CudaDevice device(0);
  const auto stream = device.make_stream(Lane::kCompute);
  std::atomic<bool> done = false;
  const auto expect_work_before_free_of = [&](auto make_memory) {
    done = false;
    {
      [[maybe_unused]] const auto memory = make_memory();
      launch_slow_work(*stream, done);
    }
    EXPECT_TRUE(done);
  };
  expect_work_before_free_of([&] { return device.allocate(4096, Category::kSlots, "memory of a GPU"); });
  expect_work_before_free_of([&] { return device.allocate_host(4096, "pinned memory"); });
  expect_work_before_free_of([&] { return allocate_pinned(device, 4096, Category::kStaging, "booked pinned memory"); });
}

/// Becomes idle when `done` is set. If `aborts`, a poll sets it and throws, as after a timeout.
class WatchdogOfHangingWork final : public Watchdog {
 public:
  WatchdogOfHangingWork(bool& done, bool aborts) : done_(done), aborts_(aborts) {}
  void poll() override {
    if (!aborts_) return;
    done_ = true;
    throw std::runtime_error("the collective was aborted");
  }
  bool idle() override { return done_; }

 private:
  bool& done_;
  bool aborts_;
};

TEST(LifetimesOnGpu, AWaitPollsTheWatchdogsOfAllCommunicators) {
  CudaDevice device(0);
  bool done = false;
  WatchdogOfHangingWork behind(done, false), first(done, true);
  device.add_watchdog(behind);
  device.add_watchdog(first);
  device.wait_until_watchdogs_idle();
  EXPECT_TRUE(done);
  device.remove_watchdog(behind);
  device.remove_watchdog(first);
}

TEST(LifetimesOnGpuDeathTest, TheSimulatedRuntimeRefusesMemoryThatIsFreedTooEarly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto free_under_work = [] {
    cudaStream_t stream = nullptr;
    void* data = nullptr;
    check(cudaStreamCreate(&stream), "making a stream");
    check(cudaMalloc(&data, 4096), "allocating");
    simulated::launch(stream, [] { std::this_thread::sleep_for(std::chrono::seconds(1)); });
    check(cudaMemsetAsync(data, 0, 4096, stream), "clearing");
    check(cudaFree(data), "freeing");
  };
  EXPECT_DEATH(free_under_work(), "memory is freed before a copy that uses it has run");
  const auto destroy_busy_stream = [] {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream), "making a stream");
    simulated::launch(stream, [] { std::this_thread::sleep_for(std::chrono::seconds(1)); });
    check(cudaStreamDestroy(stream), "destroying");
  };
  EXPECT_DEATH(destroy_busy_stream(), "a stream is destroyed before its work has run");
}

}  // namespace
}  // namespace aliquot
