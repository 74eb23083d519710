// Tests of AdversarialScheduler on one rank: it reorders work as far as waits allow, and no further.
#include <gtest/gtest.h>
#include <set>
#include <vector>

#include "kernels/device/host_stream.h"
#include "tests/support/adversarial_device.h"

namespace aliquot {
namespace {

constexpr int kSeeds = 20;

struct Lanes {
  Lane producer, consumer;
};

struct Waits {
  bool by_consumer = true, by_producer = true;
};

/// Runs a producer and a consumer that alternate between two slots, like double-buffered gathers. The compute lane is
/// queued like any other lane. Returns whether the consumer read the producer's value each time.
bool consumer_reads_expected_values(uint64_t seed, Lanes lanes, Waits waits) {
  AdversarialScheduler adversary(seed, AdversarialScheduler::Compute::kQueued);
  const auto device = adversary.make_device();
  const auto producer = device->make_stream(lanes.producer), consumer = device->make_stream(lanes.consumer);
  const auto filled = device->make_event(), used = device->make_event();
  std::vector<int> slots(2, -1);
  int wrong_count = 0;
  for (int i = 0; i < 12; ++i) {
    int* slot = &slots[i % 2];
    if (waits.by_producer) producer->wait(*used);
    as_host_stream(*producer).run([slot, i] { *slot = i; });
    producer->record(*filled);
    if (waits.by_consumer) consumer->wait(*filled);
    as_host_stream(*consumer).run([slot, i, &wrong_count] { wrong_count += *slot != i; });
    consumer->record(*used);
  }
  producer->synchronize();
  consumer->synchronize();
  return wrong_count == 0;
}

class AdversaryOnTwoLanes : public testing::TestWithParam<Lanes> {
 protected:
  int failing_seed_count(Waits waits) const {
    int found = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) found += !consumer_reads_expected_values(seed, GetParam(), waits);
    return found;
  }
};

TEST_P(AdversaryOnTwoLanes, AllWaitsGiveTheExpectedValues) { EXPECT_EQ(failing_seed_count({}), 0); }
TEST_P(AdversaryOnTwoLanes, ExposesAConsumerThatDoesNotWait) {
  EXPECT_GE(failing_seed_count({.by_consumer = false}), kSeeds / 4);
}
TEST_P(AdversaryOnTwoLanes, ExposesAProducerThatDoesNotWait) {
  EXPECT_GE(failing_seed_count({.by_producer = false}), kSeeds / 4);
}

INSTANTIATE_TEST_SUITE_P(Lanes, AdversaryOnTwoLanes,
                         testing::Values(Lanes{Lane::kGather, Lane::kReduce}, Lanes{Lane::kGather, Lane::kCompute},
                                         Lanes{Lane::kCompute, Lane::kReduce}),
                         [](const auto& test) {
                           return std::string(name(test.param.producer)) + "_to_" +
                                  std::string(name(test.param.consumer));
                         });

TEST(AdversarialScheduler, UnawaitedWorkRunsLateEarlyOrPartly) {
  // The numbers of tasks, of ten, that ran before synchronize() with the different seeds.
  std::set<int> counts;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    AdversarialScheduler adversary(seed);
    const auto device = adversary.make_device();
    const auto gather = device->make_stream(Lane::kGather);
    int ran = 0;
    for (int i = 0; i < 10; ++i) as_host_stream(*gather).run([&ran] { ++ran; });
    counts.insert(ran);
    gather->synchronize();
    EXPECT_EQ(ran, 10);
  }
  EXPECT_TRUE(counts.contains(0));
  EXPECT_TRUE(counts.contains(10));
  EXPECT_GT(counts.size(), 2u);
}

TEST(AdversarialScheduler, AQueuedWaitMayOutliveTheRecordingStream) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    AdversarialScheduler adversary(seed);
    const auto device = adversary.make_device();
    auto gather = device->make_stream(Lane::kGather), reduce = device->make_stream(Lane::kReduce);
    const auto event = device->make_event();
    int ran = 0;
    as_host_stream(*reduce).run([&ran] { ++ran; });
    reduce->record(*event);
    gather->wait(*event);
    as_host_stream(*gather).run([&ran] { ++ran; });
    reduce.reset();
    gather.reset();
    EXPECT_EQ(ran, 2);
    EXPECT_TRUE(event->passed());
  }
}

TEST(AdversarialScheduler, AComputeWaitRunsOnlyTheWorkBeforeTheEvent) {
  AdversarialScheduler adversary(0);  // seed 0 runs all work as late as possible
  const auto device = adversary.make_device();
  const auto compute = device->make_stream(Lane::kCompute), gather = device->make_stream(Lane::kGather);
  const auto event = device->make_event();
  int ran = 0;
  as_host_stream(*gather).run([&ran] { ++ran; });
  gather->record(*event);
  as_host_stream(*gather).run([&ran] { ++ran; });
  compute->wait(*event);
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace aliquot
