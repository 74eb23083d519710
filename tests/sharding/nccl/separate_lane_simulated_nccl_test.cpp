// Tests that gathers do not wait for earlier reduces that have not begun.
#include <atomic>
#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <nccl.h>
#include <thread>
#include <vector>

#include "kernels/system/error.h"
#include "sharding/comm/bootstrap_threads.h"
#include "sharding/nccl/communicator_nccl.h"
#include "sharding/world.h"
#include "tests/support/simulated/simulated_nccl.h"

namespace aliquot {
namespace {

constexpr int64_t kPartBytes = 1024;

/// Whether `event` passes within `milliseconds`.
bool passes(const Event& event, int milliseconds) {
  for (int i = 0; i < milliseconds && !event.passed(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return event.passed();
}

/// Issues an exchange that cannot begin, because earlier work of its lane waits. Then issues a gather. If `separate`,
/// the gather must end although the exchange has not begun.
void gather_after_blocked_exchange(World& world, bool separate) {
  Communicator& ranks = world.communicator();
  ranks.separate_lane(Lane::kGather);
  const int64_t bytes = kPartBytes * world.rank_count();
  const auto from = ranks.allocate(bytes, Category::kSlots, "from"), to = ranks.allocate(bytes, Category::kSlots, "to"),
             whole = ranks.allocate(bytes, Category::kSlots, "whole");
  const auto reduce = world.device().make_stream(Lane::kReduce), gather = world.device().make_stream(Lane::kGather);
  const auto gathered = world.device().make_event();
  whole.local()[world.rank() * kPartBytes] = static_cast<std::byte>(world.rank() + 1);

  std::atomic<bool> may_go_on = false;
  reduce->run([&may_go_on] { may_go_on.wait(false); });
  ranks.all_to_all(*reduce, {&to, 0}, {&from, 0}, kPartBytes, {"exchange"});
  ranks.all_gather_in_place(*gather, {&whole, 0}, kPartBytes, {"gather"});
  gather->record(*gathered);
  EXPECT_EQ(passes(*gathered, separate ? 15000 : 300), separate);
  may_go_on = true;
  may_go_on.notify_all();
  gather->synchronize();
  reduce->synchronize();
  for (int r = 0; r < world.rank_count(); ++r)
    EXPECT_EQ(whole.local()[r * kPartBytes], static_cast<std::byte>(r + 1)) << "rank " << r;
}

TEST(SeparateLane, GathersDoNotWaitForEarlierCollectivesOfOtherLanes) {
  for (const bool separate : {true, false}) {
    WorldOptions options{.device = DeviceChoice::kCuda, .kind = WorldChoice::kNccl, .timeout_seconds = 20};
    options.nccl.gather_communicator = separate;
    World::threads(
        3, [&](World& world) { gather_after_blocked_exchange(world, separate); }, options);
  }
}

constexpr int kUndefined = NCCL_CONFIG_UNDEF_INT;

/// Runs `body` on two ranks with these options.
void run_pair(const NcclOptions& nccl, const std::function<void(World&)>& body) {
  simulated::take_nccl_configurations();  // those that earlier tests made on this thread
  WorldOptions options{.device = DeviceChoice::kCuda, .kind = WorldChoice::kNccl, .timeout_seconds = 20};
  options.nccl = nccl;
  World::threads(2, body, options);
}

TEST(SeparateLane, MemoryIsRegisteredWithBothCommunicators) {
  for (const bool separate : {true, false}) {
    run_pair({.gather_communicator = separate}, [&](World& world) {
      world.communicator().separate_lane(Lane::kGather);
      world.communicator().separate_lane(Lane::kGather);  // does nothing
      const auto memory = world.communicator().allocate(8192, Category::kSlots, "memory");
      EXPECT_EQ(simulated::nccl_registrations().windows, separate ? 2 : 1);
      EXPECT_EQ(std::ssize(simulated::take_nccl_configurations()), separate ? 2 : 1);
    });
  }
}

TEST(NcclOptions, ReachAllCommunicators) {
  const auto expect = [](const NcclOptions& options, const simulated::NcclConfiguration& wanted) {
    run_pair(options, [&](World& world) {
      world.communicator().separate_lane(Lane::kGather);
      const auto half = world.communicator().split(world.rank(), 0);
      EXPECT_EQ(simulated::take_nccl_configurations(), std::vector(3, wanted));
    });
  };
  expect({}, {0, kUndefined, kUndefined, kUndefined});
  expect({.channels = 4}, {0, 4, 4, kUndefined});
  expect({.copy_engines = true}, {0, kUndefined, kUndefined, NCCL_CTA_POLICY_ZERO});
}

/// Ranks with different options would make different calls.
TEST(NcclOptions, MustBeTheSameOnAllRanks) {
  for (const NcclOptions& other : {NcclOptions{.channels = 2},
                                   {.copy_engines = true},
                                   {.gather_communicator = false},
                                   {.staging_bytes = 1 << 20}}) {
    const auto store = make_threads_bootstrap_store(2, 20);
    const auto rank = [&](int r) {
      const auto device = make_cuda_device(r);
      EXPECT_THROW(make_nccl_communicator(*device, {.bootstrap = make_threads_bootstrap(store, r),
                                                    .topology = Topology::one_host(2),
                                                    .options = r == 0 ? NcclOptions{} : other}),
                   UsageError);
    };
    std::thread second(rank, 1);
    rank(0);
    second.join();
  }
}

/// One rank fails while the others wait in a collective. Their waits end on either communicator.
TEST(SeparateLane, AFailureEndsCollectivesOfBothCommunicators) {
  for (const Lane lane : {Lane::kGather, Lane::kReduce}) {
    std::atomic<int> failed_count = 0, begun_count = 0;
    const auto body = [&](World& world) {
      Communicator& ranks = world.communicator();
      ranks.separate_lane(Lane::kGather);
      const auto stream = world.device().make_stream(lane);
      ranks.barrier(*stream, {"first"});
      stream->synchronize();
      // The other ranks must not still be in the first barrier, whose failure is not counted.
      for (++begun_count; begun_count < 3;) std::this_thread::yield();
      if (world.rank() == 1) throw std::runtime_error("rank 1 fails");
      try {
        ranks.barrier(*stream, {"second"});
        stream->synchronize();
      } catch (const CommunicationError&) {
        ++failed_count;
        throw;
      }
    };
    EXPECT_THROW(
        World::threads(3, body, {.device = DeviceChoice::kCuda, .kind = WorldChoice::kNccl, .timeout_seconds = 20}),
        std::runtime_error);
    EXPECT_EQ(failed_count, 2);
  }
}

}  // namespace
}  // namespace aliquot
