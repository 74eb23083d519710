// The adversary on one rank: what it may do, and that it does it.
#include <gtest/gtest.h>
#include <set>
#include <vector>

#include "kernels/device_adversarial.h"
#include "kernels/host_stream.h"

namespace aliquot {
namespace {

constexpr int kSeeds = 20;

/// One producer and one consumer over two slots, double-buffered as gathers are; which waits are made is the argument.
bool every_value_is_right(uint64_t seed, bool consumer_waits, bool producer_waits) {
  Adversary adversary(seed);
  const auto device = adversary.make_device();
  const auto gather = device->make_stream(Lane::kGather), reduce = device->make_stream(Lane::kReduce);
  const auto filled = device->make_event(), used = device->make_event();
  std::vector<int> slots(2, -1);
  int wrong_count = 0;
  for (int i = 0; i < 12; ++i) {
    int* slot = &slots[i % 2];
    if (producer_waits) gather->wait(*used);
    host(*gather).run([slot, i] { *slot = i; });
    gather->record(*filled);
    if (consumer_waits) reduce->wait(*filled);
    host(*reduce).run([slot, i, &wrong_count] { wrong_count += *slot != i; });
    reduce->record(*used);
  }
  gather->synchronize();
  reduce->synchronize();
  return wrong_count == 0;
}

int seeds_that_find_it(bool consumer_waits, bool producer_waits) {
  int found = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) found += !every_value_is_right(seed, consumer_waits, producer_waits);
  return found;
}

TEST(Adversary, FindsNothingWhereNothingIsMissing) { EXPECT_EQ(seeds_that_find_it(true, true), 0); }
TEST(Adversary, FindsAConsumerThatDoesNotWait) { EXPECT_GE(seeds_that_find_it(false, true), kSeeds / 4); }
TEST(Adversary, FindsAProducerThatDoesNotWait) { EXPECT_GE(seeds_that_find_it(true, false), kSeeds / 4); }

TEST(Adversary, RunsLateEarlyAndInBetween) {
  std::set<int> amounts;  // how much has run by itself when nothing was asked for
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Adversary adversary(seed);
    const auto device = adversary.make_device();
    const auto gather = device->make_stream(Lane::kGather);
    int ran = 0;
    for (int i = 0; i < 10; ++i) host(*gather).run([&ran] { ++ran; });
    amounts.insert(ran);
    gather->synchronize();
    EXPECT_EQ(ran, 10);
  }
  EXPECT_TRUE(amounts.contains(0));
  EXPECT_TRUE(amounts.contains(10));
  EXPECT_GT(amounts.size(), 2u);
}

TEST(Adversary, TheComputeLaneWaitsForNoMoreThanItAsks) {
  Adversary adversary(0);  // the late mood
  const auto device = adversary.make_device();
  const auto compute = device->make_stream(Lane::kCompute), gather = device->make_stream(Lane::kGather);
  const auto event = device->make_event();
  int ran = 0;
  host(*gather).run([&ran] { ++ran; });
  gather->record(*event);
  host(*gather).run([&ran] { ++ran; });
  compute->wait(*event);
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace aliquot
