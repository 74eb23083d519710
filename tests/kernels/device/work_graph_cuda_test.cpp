#include <array>
#include <gtest/gtest.h>
#include <stdexcept>
#include <vector>

#include "kernels/device/device_cuda.h"
#include "kernels/device/work_graph.h"
#include "kernels/elementwise/kernels.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr int64_t kCount = 1000;

class WorkGraphTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
    device_ = std::make_unique<CudaDevice>(0);
    compute_ = device_->make_stream(Lane::kCompute);
    gather_ = device_->make_stream(Lane::kGather);
    begin_ = device_->make_event();
    end_ = device_->make_event();
    for (Buffer& buffer : buffers_)
      buffer = device_->allocate(kCount * int64_t{sizeof(float)}, Category::kParameters, "test");
  }

  float* at(int buffer) { return buffers_[static_cast<std::size_t>(buffer)].as<float>(); }
  void fill(Stream& stream, int buffer, float value) {
    device_->kernels().fill(stream, reinterpret_cast<std::byte*>(at(buffer)), DType::kFloat32, value, kCount);
  }
  void add(Stream& stream, int to, int from) { device_->kernels().add(stream, at(to), at(from), kCount); }
  float value(int buffer) {
    float value = 0;
    check(
        cudaMemcpyAsync(&value, at(buffer) + kCount - 1, sizeof(value), cudaMemcpyDeviceToHost, cuda_stream(*compute_)),
        "copying a value");
    compute_->synchronize();
    return value;
  }

  /// Captures: buffer 0 += buffer 1 on one stream, and then buffer 2 += buffer 0 on another.
  std::unique_ptr<WorkGraph> captured() {
    WorkCapture capture(*compute_);
    EXPECT_TRUE(is_captured(*compute_));
    EXPECT_FALSE(is_captured(*gather_));
    add(*compute_, 0, 1);
    compute_->record(*begin_);
    gather_->wait(*begin_);
    EXPECT_TRUE(is_captured(*gather_));
    add(*gather_, 2, 0);
    gather_->record(*end_);
    compute_->wait(*end_);
    return capture.end();
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> compute_, gather_;
  std::unique_ptr<Event> begin_, end_;
  std::array<Buffer, 3> buffers_;
};

TEST_F(WorkGraphTest, RunsInEachLaunchAndNotInTheCapture) {
  fill(*compute_, 0, 1);
  fill(*compute_, 1, 10);
  fill(*compute_, 2, 100);
  const auto graph = captured();
  EXPECT_FALSE(is_captured(*compute_));
  EXPECT_FALSE(is_captured(*gather_));
  EXPECT_EQ(value(0), 1);
  EXPECT_EQ(value(2), 100);
  for (int launch = 1; launch <= 3; ++launch) graph->launch(*compute_);
  EXPECT_EQ(value(0), 31);
  EXPECT_EQ(value(2), 100 + 11 + 21 + 31);
}

/// A fill with 0 is not a kernel.
TEST_F(WorkGraphTest, FillsWithZeroInEachLaunch) {
  fill(*compute_, 0, 5);
  fill(*compute_, 1, 10);
  WorkCapture capture(*compute_);
  fill(*compute_, 0, 0);
  add(*compute_, 0, 1);
  const auto graph = capture.end();
  EXPECT_EQ(value(0), 5);
  for (int launch = 1; launch <= 2; ++launch) {
    graph->launch(*compute_);
    EXPECT_EQ(value(0), 10) << "launch " << launch;
    fill(*compute_, 0, 7);
  }
}

/// Launches are ordered with other work of the stream.
TEST_F(WorkGraphTest, ReadsWhatEarlierWorkOfTheStreamWrites) {
  fill(*compute_, 0, 0);
  fill(*compute_, 2, 0);
  const auto graph = captured();
  for (const float step : {1.0f, 2.0f, 3.0f}) {
    fill(*compute_, 1, step);
    graph->launch(*compute_);
    fill(*compute_, 1, -1000);
  }
  EXPECT_EQ(value(0), 6);
  EXPECT_EQ(value(2), 1 + 3 + 6);
}

TEST_F(WorkGraphTest, RefusesHostWork) {
  WorkCapture capture(*compute_);
  EXPECT_THROW(compute_->run([] {}), std::logic_error);
}

TEST_F(WorkGraphTest, RefusesWaitsForTheDevice) {
  WorkCapture capture(*compute_);
  EXPECT_THROW(compute_->synchronize(), std::logic_error);
  EXPECT_NE(capture.end(), nullptr);
}

TEST_F(WorkGraphTest, RefusesEventsOfEarlierWork) {
  gather_->record(*begin_);
  WorkCapture capture(*compute_);
  EXPECT_THROW(compute_->wait(*begin_), FaultError);
}

TEST_F(WorkGraphTest, RefusesStreamsForWhichTheOriginDoesNotWait) {
  {
    WorkCapture capture(*compute_);
    compute_->record(*begin_);
    gather_->wait(*begin_);
    fill(*gather_, 0, 1);
    EXPECT_THROW(capture.end(), FaultError);
  }
  fill(*gather_, 0, 5);
  gather_->synchronize();
  EXPECT_EQ(value(0), 5);
}

TEST_F(WorkGraphTest, ADiscardedCaptureRunsNothing) {
  fill(*compute_, 0, 1);
  {
    WorkCapture capture(*compute_);
    fill(*compute_, 0, 2);
  }
  EXPECT_EQ(value(0), 1);
}

TEST_F(WorkGraphTest, IsDestroyedAfterItsWork) {
  for (int i = 0; i < 20; ++i) {
    const auto graph = captured();
    graph->launch(*compute_);
  }
}

TEST_F(WorkGraphTest, KnowsWhichStreamsCanBeCaptured) {
  EXPECT_TRUE(can_capture(*compute_));
  const auto legacy = wrap_cuda_stream(*device_, Lane::kCompute, nullptr);
  EXPECT_FALSE(can_capture(*legacy));
  const auto host = make_host_device(1);
  const auto stream = host->make_stream(Lane::kCompute);
  EXPECT_FALSE(can_capture(*stream));
  EXPECT_FALSE(is_captured(*stream));
}

}  // namespace
}  // namespace aliquot
