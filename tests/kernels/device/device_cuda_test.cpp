#include "kernels/device/device_cuda.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/elementwise/kernels.h"
#include "kernels/system/error.h"
#include "tests/kernels/device/time_marks_check.h"

namespace aliquot {
namespace {

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
    device_ = std::make_unique<CudaDevice>(0);
  }
  CudaDevice& device() { return *device_; }

 private:
  std::unique_ptr<CudaDevice> device_;
};

TEST(CudaDevices, TheErrorForAnAbsentDeviceNamesIt) {
  try {
    make_cuda_device(1000);
    FAIL() << "make_cuda_device() accepted the absent GPU 1000";
  } catch (const UnavailableError& error) {
    const std::string_view expected = cuda_device_count() > 0 ? "GPU 1000 does not exist" : "counting GPUs failed";
    EXPECT_NE(std::string_view(error.what()).find(expected), std::string_view::npos) << error.what();
  }
}

TEST_F(CudaDeviceTest, ReportsItsKindAndNumber) {
  EXPECT_EQ(device().kind(), DeviceKind::kCuda);
  EXPECT_NE(device().describe().find(" #0"), std::string::npos) << device().describe();
}

TEST_F(CudaDeviceTest, CountsAllocationsInTheLedger) {
  {
    const Buffer shard = device().allocate(1000, Category::kParameters, "shard");
    const Buffer arena = device().allocate(1 << 20, Category::kArena, "arena");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(shard.data()) % kBufferAlignmentBytes, 0u);
    EXPECT_EQ(device().ledger().held_bytes(), 1000 + (1 << 20));
    EXPECT_EQ(device().ledger().in_use_bytes(), 1000);
  }
  EXPECT_EQ(device().ledger().held_bytes(), 0);
  EXPECT_EQ(device().ledger().in_use_bytes(), 0);
}

TEST_F(CudaDeviceTest, AnEmptyAllocationIsNull) {
  const Buffer none = device().allocate(0, Category::kSlots, "none");
  EXPECT_EQ(none.data(), nullptr);
}

TEST_F(CudaDeviceTest, AFailedAllocationNamesOwnerAndSizeAndCountsNothing) {
  const int64_t too_many = device().memory().total_bytes + (int64_t{1} << 30);
  try {
    device().allocate(too_many, Category::kOptimizer, "the moments");
    FAIL() << "allocate() returned more memory than the GPU has";
  } catch (const UnavailableError& error) {
    EXPECT_NE(std::string(error.what()).find("the moments"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(std::to_string(too_many)), std::string::npos) << error.what();
  }
  EXPECT_EQ(device().ledger().held_bytes(), 0);
  EXPECT_NO_THROW(device().allocate(256, Category::kSlots, "small"));  // the failure left no pending CUDA error
}

TEST_F(CudaDeviceTest, CopiesToTheDeviceAndBack) {
  std::vector<int> numbers(100'003), back(100'003);
  std::iota(numbers.begin(), numbers.end(), 7);
  const auto size_bytes = static_cast<int64_t>(numbers.size() * sizeof(int));
  const Buffer buffer = device().allocate(size_bytes, Category::kSlots, "numbers");
  const auto stream = device().make_stream(Lane::kIo);
  device().kernels().copy(*stream, buffer.data(), numbers.data(), size_bytes);
  device().kernels().copy(*stream, back.data(), buffer.data(), size_bytes);
  stream->synchronize();
  EXPECT_EQ(back, numbers);
}

/// Blocks a stream until release(), so that a test can observe whether other streams wait for it.
class StreamBlocker {
 public:
  explicit StreamBlocker(Stream& stream) {
    stream.run([this] {
      while (!released_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  void release() { released_.store(true); }
  ~StreamBlocker() { release(); }

 private:
  std::atomic<bool> released_{false};
};

TEST_F(CudaDeviceTest, AnEventPassesWhenTheWorkBeforeItIsDone) {
  const auto event = device().make_event();
  EXPECT_TRUE(event->passed());  // an event that was never recorded has passed
  const auto stream = device().make_stream(Lane::kGather);
  StreamBlocker blocker(*stream);
  stream->record(*event);
  EXPECT_FALSE(event->passed());
  blocker.release();
  stream->synchronize();
  EXPECT_TRUE(event->passed());
}

TEST_F(CudaDeviceTest, AStreamWaitsForAnEventOfAnotherStream) {
  const auto first = device().make_stream(Lane::kGather), second = device().make_stream(Lane::kCompute);
  const auto event = device().make_event(), end = device().make_event();
  std::atomic<int> seen{-1};
  int written = 0;
  StreamBlocker blocker(*first);
  first->run([&] { written = 42; });
  first->record(*event);
  second->wait(*event);
  second->run([&] { seen = written; });
  second->record(*end);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(end->passed());
  EXPECT_EQ(seen, -1);
  blocker.release();
  second->synchronize();
  EXPECT_EQ(seen, 42);
  first->synchronize();
}

TEST_F(CudaDeviceTest, HostWorkRunsInTheOrderOfItsStream) {
  const auto stream = device().make_stream(Lane::kCompute);
  std::vector<int> order;
  order.reserve(2000);
  // Enqueues more work than the stream's queue can hold.
  for (int i = 0; i < 2000; ++i) stream->run([&order, i] { order.push_back(i); });
  stream->synchronize();
  ASSERT_EQ(order.size(), 2000u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(CudaDeviceTest, SynchronizeRethrowsExceptionsOfHostWork) {
  const auto stream = device().make_stream(Lane::kCompute), other = device().make_stream(Lane::kGather);
  stream->run([] { throw UsageError("wrong"); });
  EXPECT_THROW(stream->synchronize(), UsageError);
  bool ran = false;
  stream->run([&ran] { ran = true; });
  other->run([&ran] { ran = true; });
  EXPECT_THROW(stream->synchronize(), UsageError);
  EXPECT_THROW(other->synchronize(), UsageError);
  EXPECT_FALSE(ran) << "host work ran on a failed device";
}

TEST_F(CudaDeviceTest, AWrappedStreamIsUsedAndNotDestroyed) {
  cudaStream_t own = nullptr;
  check(cudaStreamCreate(&own), "making a stream");
  {
    const auto stream = wrap_cuda_stream(device(), Lane::kCompute, own);
    EXPECT_EQ(cuda_stream(*stream), own);
    bool done = false;
    stream->run([&] { done = true; });
    stream->synchronize();
    EXPECT_TRUE(done);
  }
  EXPECT_EQ(cudaStreamQuery(own), cudaSuccess);
  check(cudaStreamDestroy(own), "destroying a stream");
}

TEST_F(CudaDeviceTest, PinnedMemoryIsWritableByTheHost) {
  const Buffer pinned = allocate_pinned(device(), 4096, Category::kStaging, "staging");
  std::memset(pinned.data(), 1, 4096);
  EXPECT_EQ(device().ledger().current()[static_cast<std::size_t>(Category::kStaging)], 4096);
}

TEST_F(CudaDeviceTest, TheErrorOfAPinnedAllocationNamesHostMemory) {
  try {
    allocate_pinned(device(), int64_t{1} << 50, Category::kStaging, "the staging ring");
    FAIL() << "allocate_pinned() returned 1 PiB";
  } catch (const UnavailableError& error) {
    EXPECT_STREQ(error.what(),
                 "cannot allocate 1125899906842624 bytes of pinned host memory for the staging ring: free host memory "
                 "or raise the limit of ulimit -l");
  }
  EXPECT_EQ(device().ledger().held_bytes(), 0);
}

TEST_F(CudaDeviceTest, SeveralDevicesMayShareOneGpu) {
  CudaDevice twin(0);
  const Buffer mine = device().allocate(512, Category::kSlots, "mine");
  EXPECT_EQ(twin.ledger().held_bytes(), 0);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 4; ++r) {
    ranks.emplace_back([] {
      CudaDevice own(0);
      const auto stream = own.make_stream(Lane::kCompute);
      const Buffer buffer = own.allocate(1 << 20, Category::kSlots, "own");
      own.kernels().fill(*stream, buffer.data(), DType::kFloat32, 1.0f, 1 << 18);
      stream->synchronize();
    });
  }
  for (auto& rank : ranks) rank.join();
}

/// Throws at its third poll, like a watchdog that detects a hanging collective.
class FailingWatchdog final : public Watchdog {
 public:
  explicit FailingWatchdog(StreamBlocker& blocker) : blocker_(blocker) {}
  void poll() override {
    if (++polls_ < 3) return;
    blocker_.release();  // ends the blocking work
    throw FaultError("timed out");
  }
  bool idle() override { return polls_ >= 3; }

 private:
  StreamBlocker& blocker_;
  int polls_ = 0;
};

TEST_F(CudaDeviceTest, AWatchdogEndsASynchronizeThatHangs) {
  const auto stream = device().make_stream(Lane::kGather);
  StreamBlocker blocker(*stream);
  FailingWatchdog watchdog(blocker);
  device().add_watchdog(watchdog);
  EXPECT_THROW(stream->synchronize(), FaultError);
  device().remove_watchdog(watchdog);
  stream->synchronize();
}

TEST_F(CudaDeviceTest, TimeMarksHaveTheTimesOfTheStreams) { expect_times_of_streams(device(), 5e-3); }

}  // namespace
}  // namespace aliquot
