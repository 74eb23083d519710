#include "sharding/cuda/lane_events_cuda.h"

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <stdexcept>
#include <thread>

namespace aliquot {
namespace {

class LaneEventsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
    device_ = std::make_unique<CudaDevice>(0);
  }
  std::unique_ptr<CudaStream> stream(Lane lane) { return std::make_unique<CudaStream>(lane, *device_, 0); }

 private:
  std::unique_ptr<CudaDevice> device_;
};

void block_stream(CudaStream& stream, const std::atomic<bool>& go) {
  stream.run([&go] {
    while (!go.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}

TEST_F(LaneEventsTest, WaitingForZeroDoesNotBlock) {
  LaneEvents events(0);
  const auto waiter = stream(Lane::kCompute);
  events.wait(*waiter, 0);
  waiter->synchronize();
}

TEST_F(LaneEventsTest, WaitingForAnUnrecordedNumberThrows) {
  LaneEvents events(0);
  const auto waiter = stream(Lane::kCompute);
  EXPECT_THROW(events.wait(*waiter, 1), std::logic_error);
}

TEST_F(LaneEventsTest, WaitDoesNotIncludeLaterEvents) {
  LaneEvents events(0);
  std::atomic<bool> go{false};
  const auto owner = stream(Lane::kGather), waiter = stream(Lane::kCompute);
  events.record(*owner, 1);
  block_stream(*owner, go);
  events.record(*owner, 2);
  events.wait(*waiter, 1);
  waiter->synchronize();  // would hang if wait() had also waited for event 2
  go = true;
  owner->synchronize();
}

TEST_F(LaneEventsTest, WaitForAnOverwrittenEventUsesALaterEvent) {
  LaneEvents events(0);
  std::atomic<bool> go{false};
  const auto owner = stream(Lane::kGather), waiter = stream(Lane::kCompute);
  int written = 0;
  std::atomic<int> seen{-1};
  block_stream(*owner, go);
  owner->run([&] { written = 1; });
  for (uint64_t i = 1; i <= 3 * LaneEvents::kDepth; ++i) events.record(*owner, i);
  events.wait(*waiter, 1);
  waiter->run([&] { seen = written; });
  go = true;
  waiter->synchronize();
  EXPECT_EQ(seen, 1);
  owner->synchronize();
}

TEST_F(LaneEventsTest, WaitIncludesThePreviousStreamAfterAChangeOfStream) {
  LaneEvents events(0);
  std::atomic<bool> go{false};
  const auto first = stream(Lane::kGather), second = stream(Lane::kGather), waiter = stream(Lane::kCompute);
  int written = 0;
  std::atomic<int> seen{-1};
  block_stream(*first, go);
  first->run([&] { written = 1; });
  events.record(*first, 1);
  events.record(*second, 2);
  events.wait(*waiter, 2);
  waiter->run([&] { seen = written; });
  go = true;
  waiter->synchronize();
  EXPECT_EQ(seen, 1);
  first->synchronize();
  second->synchronize();
}

}  // namespace
}  // namespace aliquot
