// Tests sums over NCCL in tree order, on the simulated NCCL.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <thread>

#include "sharding/comm/bootstrap_threads.h"
#include "sharding/nccl/tree_reduce_scatter_nccl.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kPartCount = 1000;

/// Element `i` of part `part` on a rank. The values have different magnitudes, so sums depend on their order.
float element(int rank, int part, int64_t i) {
  const auto mixed = static_cast<uint32_t>(rank * 7919 + part * 104729 + i * 1299709) * 2654435761u;
  return static_cast<float>(mixed >> 8) * (i % 3 == 0 ? 1e-6f : 1e-2f);
}

struct Summed {
  std::vector<float> values;
  std::vector<double> squares;
  friend bool operator==(const Summed&, const Summed&) = default;
};

/// Returns the sum that this rank computes if it receives parts in pieces of `piece_elements` elements.
Summed sum_of_rank(NcclHandle& handle, int rank, int64_t piece_elements) {
  Device& device = handle.device();
  const auto memory = [&](int64_t bytes) { return device.allocate(bytes, Category::kCommunication, "test"); };
  const ReduceStaging cut{.piece_elements = piece_elements, .place_count = kRanks, .slot_count = 1};
  const Buffer from = memory(kRanks * kPartCount * 4), to = memory(kPartCount * 4), staging = memory(cut.size_bytes());
  const int64_t blocks = (kPartCount + kBlockElements - 1) / kBlockElements;
  const Buffer squares = memory(blocks * 8);
  const SymmetricBuffer parts(nullptr, from.data(), std::vector<const std::byte*>(kRanks, nullptr),
                              kRanks * kPartCount * 4);
  for (int64_t i = 0; i < kRanks * kPartCount; ++i)
    from.as<float>()[i] = element(rank, static_cast<int>(i / kPartCount), i % kPartCount);
  const auto stream = device.make_stream(Lane::kReduce);
  const ReduceScatter what{.from = {&parts, 0},
                           .to = to.data(),
                           .part_count = kPartCount,
                           .factor = 0.25f,
                           .block_squares = squares.as<double>(),
                           .in_tree_order = true,
                           .staging = staging.data()};
  const CollectiveCall call{describe_reduce_scatter(what, {"test"}), 1, Lane::kReduce, {"test"}, {}};
  reduce_scatter_in_tree(handle, *stream, what, cut, call);
  stream->synchronize();
  Summed sum{std::vector<float>(kPartCount), std::vector<double>(static_cast<std::size_t>(blocks))};
  std::memcpy(sum.values.data(), to.data(), kPartCount * 4);
  std::memcpy(sum.squares.data(), squares.data(), static_cast<std::size_t>(blocks) * 8);
  return sum;
}

/// Returns the sums that the ranks compute, by rank.
std::vector<Summed> sums(int64_t piece_elements) {
  std::vector<Summed> all(kRanks);
  const auto store = make_threads_bootstrap_store(kRanks, 20);
  const auto run = [&](int rank) {
    const auto device = make_cuda_device(rank);
    NcclSetup setup{.bootstrap = make_threads_bootstrap(store, rank),
                    .topology = Topology::one_host(kRanks),
                    .timeout_seconds = 20};
    NcclHandle handle(cuda_device(*device), std::make_shared<NcclPeers>(setup), setup.options, setup.timeout_seconds);
    all[static_cast<std::size_t>(rank)] = sum_of_rank(handle, rank, piece_elements);
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(run, rank);
  for (std::thread& rank : ranks) rank.join();
  return all;
}

TEST(TreeReduceScatter, PiecesDoNotChangeTheBits) {
  const std::vector<Summed> whole = sums(1024);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int64_t i = 0; i < kPartCount; ++i) {
      const float expected = ((element(0, rank, i) + element(1, rank, i)) + element(2, rank, i)) * 0.25f;
      ASSERT_EQ(whole[static_cast<std::size_t>(rank)].values[static_cast<std::size_t>(i)], expected)
          << rank << ' ' << i;
    }
  }
  for (const int64_t piece_elements : {256, 512, 768}) EXPECT_EQ(sums(piece_elements), whole) << piece_elements;
}

/// Without staging memory, the communicator rejects a sum in tree order before it reaches NCCL.
TEST(TreeReduceScatter, RequiresStagingMemory) {
  const auto body = [](World& world) {
    const SymmetricBuffer from = world.communicator().allocate(2048, Category::kGradients, "from");
    const auto stream = world.device().make_stream(Lane::kReduce);
    float* values = reinterpret_cast<float*>(from.local());
    std::fill_n(values, 512, 1.5f);
    float* part = values + 256 * world.rank();
    ReduceScatter what{.from = {&from, 0}, .to = part, .part_count = 256};
    EXPECT_TRUE(world.topology().over_nccl);
    world.communicator().reduce_scatter(*stream, what, {"test"});  // NCCL adds without staging memory
    stream->synchronize();
    EXPECT_EQ(std::vector<float>(part, part + 256), std::vector<float>(256, 3.0f));
    what.in_tree_order = true;
    EXPECT_THROW(world.communicator().reduce_scatter(*stream, what, {"test"}), UsageError);
  };
  World::threads(2, body, {.device = DeviceChoice::kCuda, .kind = WorldChoice::kNccl, .timeout_seconds = 20});
}

}  // namespace
}  // namespace aliquot
