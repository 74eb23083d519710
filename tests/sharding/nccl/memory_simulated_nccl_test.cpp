// Tests which memory is registered with NCCL, and how, on the simulated NCCL.
#include <gtest/gtest.h>
#include <nccl.h>
#include <ostream>
#include <thread>
#include <vector>

#include "sharding/world.h"
#include "tests/support/simulated/simulated_nccl.h"

namespace aliquot {
namespace simulated {

void PrintTo(const NcclRegistrations& counts, std::ostream* out) {
  *out << counts.windows << " windows, " << counts.buffers << " buffers";
}

}  // namespace simulated
namespace {

using simulated::fail_next_nccl_allocation;
using simulated::nccl_registrations;
using simulated::NcclRegistrations;

constexpr NcclRegistrations kNone{}, kWindow{.windows = 1}, kBuffer{.buffers = 1};

/// Runs `body` on four ranks. Expects that all registrations that it makes have been removed when it returns.
void run_four_ranks(const std::function<void(World&)>& body) {
  World::threads(4,
                 [&](World& world) {
                   ASSERT_EQ(nccl_registrations(), kNone);
                   body(world);
                   EXPECT_EQ(nccl_registrations(), kNone);
                 },
                 {.device = DeviceChoice::kCuda, .kind = WorldChoice::kNccl, .timeout_seconds = 20});
}

/// Returns the registrations that attach() makes for the pair of this rank: ranks 0 and 1, or ranks 2 and 3. Also
/// gathers one byte per rank in the memory of the pair.
NcclRegistrations registrations_of_pair(World& world, const SymmetricBuffer& whole) {
  const auto pair = world.communicator().split(world.rank() / 2, 0);
  const NcclRegistrations before = nccl_registrations();
  const int first = world.rank() / 2 * 2;
  const SymmetricBuffer view = pair->attach(whole, std::vector{first, first + 1});
  const NcclRegistrations after = nccl_registrations();
  view.local()[pair->rank()] = static_cast<std::byte>(world.rank());
  const auto stream = world.device().make_stream(Lane::kGather);
  pair->all_gather_in_place(*stream, {&view, 0}, 1, {"test"});
  stream->synchronize();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(view.local()[i], static_cast<std::byte>(first + i));
  return {after.windows - before.windows, after.buffers - before.buffers};
}

TEST(NcclMemory, EqualSizesAreRegisteredAsWindows) {
  run_four_ranks([](World& world) {
    const auto memory = world.communicator().allocate(8192, Category::kSlots, "memory");
    EXPECT_EQ(nccl_registrations(), kWindow);
    EXPECT_EQ(registrations_of_pair(world, memory), kWindow);
  });
}

/// NCCL rejects symmetric windows of different sizes, so the four ranks register their memory as buffers. The two ranks
/// of a pair have memory of equal size. They register it as a window.
TEST(NcclMemory, DifferentSizesAreRegisteredAsBuffers) {
  run_four_ranks([](World& world) {
    const int64_t own_bytes = world.rank() < 2 ? 8192 : 16384;
    const auto memory =
        world.communicator().allocate(own_bytes, RankSizes::kMayDiffer, Category::kSlots, "memory of pairs");
    EXPECT_EQ(nccl_registrations(), kBuffer);
    EXPECT_EQ(registrations_of_pair(world, memory), kWindow);
  });
}

/// Registration is collective. If one rank has memory that NCCL cannot register, no rank may wait for it.
TEST(NcclMemory, NoRankRegistersIfNcclCannotAllocateOnOne) {
  for (const RankSizes sizes : {RankSizes::kEqual, RankSizes::kMayDiffer}) {
    run_four_ranks([sizes](World& world) {
      if (world.rank() == 3) fail_next_nccl_allocation();
      const auto memory = world.communicator().allocate(8192, sizes, Category::kSlots, "memory");
      EXPECT_EQ(nccl_registrations(), kNone);
      EXPECT_EQ(registrations_of_pair(world, memory), world.rank() < 2 ? kWindow : kNone);
    });
  }
}

TEST(SimulatedNccl, RejectsWindowsOfDifferentSizes) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  const auto register_window = [&id](int rank) {
    ncclComm_t comm = nullptr;
    ncclCommInitRankConfig(&comm, 2, id, rank, nullptr);
    std::vector<std::byte> memory(8192);
    ncclWindow_t window = nullptr;
    const auto size_bytes = [rank](int other_rank_bytes) {
      return static_cast<std::size_t>(rank == 0 ? 4096 : other_rank_bytes);
    };
    EXPECT_EQ(ncclCommWindowRegister(comm, memory.data(), size_bytes(8192), &window, NCCL_WIN_COLL_SYMMETRIC),
              ncclInvalidArgument);
    EXPECT_EQ(window, nullptr);
    EXPECT_EQ(ncclCommWindowRegister(comm, memory.data(), size_bytes(4096), &window, NCCL_WIN_COLL_SYMMETRIC),
              ncclInProgress);
    EXPECT_NE(window, nullptr);
    ncclCommWindowDeregister(comm, window);
    ncclCommDestroy(comm);
  };
  std::thread other(register_window, 1);
  register_window(0);
  other.join();
}

}  // namespace
}  // namespace aliquot
