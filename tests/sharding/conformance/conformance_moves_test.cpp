// Conformance tests of operations that move data: gathers, all-to-all, transfers, broadcast and shared ranges.
#include <cstring>

#include "kernels/elementwise/kernels.h"
#include "tests/sharding/conformance/conformance.h"

namespace aliquot::conformance {
namespace {

std::vector<float> part_of(int rank, int part, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = value(rank, part, i);
  return values;
}

void write_part(World& world, std::byte* to, int rank, int part, int64_t count) {
  const std::vector<float> values = part_of(rank, part, count);
  std::vector<std::byte> bytes(count * sizeof(float));
  if (count > 0) std::memcpy(bytes.data(), values.data(), bytes.size());
  write(world, to, bytes);
}

/// Compares one part on the device with value(). Reports at most one failure, for the first wrong element.
void expect_part(World& world, const std::byte* from, int rank, int part, int64_t count) {
  const auto bytes = read(world, from, count * static_cast<int64_t>(sizeof(float)));
  const std::vector<float> expected = part_of(rank, part, count);
  if (count == 0 || std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    float found;
    std::memcpy(&found, bytes.data() + i * sizeof(float), sizeof(float));
    if (found != expected[i]) {
      ADD_FAILURE() << "rank " << world.rank() << ": element " << i << " of part " << part << " from rank " << rank
                    << " is " << found << ", not " << expected[i];
      return;
    }
  }
}

void finish(Communicator& ranks, Stream& stream) {
  ranks.barrier(stream, {"end of test"});
  stream.synchronize();
}

/// Byte offsets of a collective in its two buffers.
struct Offsets {
  int64_t to = 0, from = 0;
};
constexpr Offsets kNoOffsets{}, kDifferentOffsets{512, 768};

void check_all_gather(World& world, Communicator& ranks, int64_t count, Offsets offset) {
  const int64_t part_bytes = count * 4;
  const auto own = ranks.allocate(offset.from + part_bytes, Category::kParameters, "own");
  const auto gathered = ranks.allocate(offset.to + part_bytes * ranks.rank_count(), Category::kSlots, "gathered");
  write_part(world, own.local() + offset.from, ranks.rank(), 0, count);
  const auto stream = world.device().make_stream(Lane::kGather);
  ranks.all_gather(*stream, {&gathered, offset.to}, {&own, offset.from}, part_bytes, {"test"});
  finish(ranks, *stream);
  for (int r = 0; r < ranks.rank_count(); ++r)
    expect_part(world, gathered.local() + offset.to + r * part_bytes, r, 0, count);
}

void check_all_gather_in_place(World& world, Communicator& ranks, int64_t count, int64_t offset) {
  const int64_t part_bytes = count * 4;
  const auto gathered = ranks.allocate(offset + part_bytes * ranks.rank_count(), Category::kSlots, "gathered");
  const int64_t own = offset + ranks.rank() * part_bytes;
  write_part(world, gathered.local() + own, ranks.rank(), 3, count);
  const auto stream = world.device().make_stream(Lane::kGather);
  // Each rank passes the offset of the full range, which is the same on all ranks, instead of the offset of its part.
  ranks.all_gather_in_place(*stream, {&gathered, offset}, part_bytes, {"test"});
  finish(ranks, *stream);
  for (int r = 0; r < ranks.rank_count(); ++r)
    expect_part(world, gathered.local() + offset + r * part_bytes, r, 3, count);
}

void check_all_to_all(World& world, Communicator& ranks, int64_t count, Offsets offset) {
  const int64_t part_bytes = count * 4;
  const auto from = ranks.allocate(offset.from + part_bytes * ranks.rank_count(), Category::kSlots, "from");
  const auto to = ranks.allocate(offset.to + part_bytes * ranks.rank_count(), Category::kSlots, "to");
  for (int p = 0; p < ranks.rank_count(); ++p)
    write_part(world, from.local() + offset.from + p * part_bytes, ranks.rank(), p, count);
  const auto stream = world.device().make_stream(Lane::kReduce);
  ranks.all_to_all(*stream, {&to, offset.to}, {&from, offset.from}, part_bytes, {"test"});
  finish(ranks, *stream);
  for (int r = 0; r < ranks.rank_count(); ++r)
    expect_part(world, to.local() + offset.to + r * part_bytes, r, ranks.rank(), count);
}

/// Rank s sends no bytes to rank t if (s + t) % 3 is 2, and `count` + s + t elements otherwise. So lengths differ
/// between pairs of ranks.
struct TransferSizes {
  explicit TransferSizes(int ranks, int64_t count) : rank_count(ranks), size_bytes(count * 4) {}
  int64_t bytes(int source, int target) const {
    return (source + target) % 3 == 2 ? 0 : size_bytes + 4 * (source + target);
  }
  int64_t max_bytes() const { return size_bytes + 8 * rank_count; }
  int rank_count;
  int64_t size_bytes;
};

void check_transfer(World& world, Communicator& ranks, int64_t count, Offsets offset) {
  const TransferSizes sizes(ranks.rank_count(), count);
  const auto from = ranks.allocate(offset.from + sizes.max_bytes() * ranks.rank_count(), Category::kSlots, "from");
  const auto to = ranks.allocate(offset.to + sizes.max_bytes() * ranks.rank_count(), Category::kSlots, "to");
  std::vector<Transfer> own;
  int64_t all_bytes = 0;
  for (int s = 0; s < ranks.rank_count(); ++s) {
    for (int t = ranks.rank_count() - 1; t >= 0; --t) {
      all_bytes += sizes.bytes(s, t);
      if (s == ranks.rank() || t == ranks.rank())
        own.push_back({s, t, t * sizes.max_bytes(), s * sizes.max_bytes(), sizes.bytes(s, t)});
    }
  }
  for (int t = 0; t < ranks.rank_count(); ++t)
    write_part(world, from.local() + offset.from + t * sizes.max_bytes(), ranks.rank(), t,
               sizes.bytes(ranks.rank(), t) / 4);
  const auto stream = world.device().make_stream(Lane::kGather);
  ranks.transfer(*stream, {{&to, offset.to}, {&from, offset.from}, own, all_bytes}, {"test"});
  finish(ranks, *stream);
  for (int s = 0; s < ranks.rank_count(); ++s)
    expect_part(world, to.local() + offset.to + s * sizes.max_bytes(), s, ranks.rank(),
                sizes.bytes(s, ranks.rank()) / 4);
}

void check_broadcast(World& world, Communicator& ranks, int64_t count) {
  const int64_t size_bytes = count * 4;
  const auto buffer = ranks.allocate(size_bytes * ranks.rank_count(), Category::kSlots, "buffer");
  const auto stream = world.device().make_stream(Lane::kGather);
  for (int root = 0; root < ranks.rank_count(); ++root) {
    if (ranks.rank() == root) write_part(world, buffer.local() + root * size_bytes, root, 1, count);
    ranks.broadcast(*stream, {&buffer, root * size_bytes}, size_bytes, root, {"test"});
  }
  finish(ranks, *stream);
  for (int root = 0; root < ranks.rank_count(); ++root)
    expect_part(world, buffer.local() + root * size_bytes, root, 1, count);
}

TEST_P(EveryWorld, AllGatherCollectsEveryPart) {
  run([&](World& world) { check_all_gather(world, world.communicator(), count(), kNoOffsets); });
}
TEST_P(EveryWorld, AllGatherAtAnOffset) {
  run([&](World& world) { check_all_gather(world, world.communicator(), count(), kDifferentOffsets); });
}
TEST_P(EveryWorld, AllGatherInPlaceAtAnOffset) {
  run([&](World& world) { check_all_gather_in_place(world, world.communicator(), count(), 256); });
}
TEST_P(EveryWorld, AllToAllExchangesEveryPart) {
  run([&](World& world) { check_all_to_all(world, world.communicator(), count(), kNoOffsets); });
}
TEST_P(EveryWorld, AllToAllAtAnOffset) {
  run([&](World& world) { check_all_to_all(world, world.communicator(), count(), kDifferentOffsets); });
}
TEST_P(EveryWorld, TransfersOfDifferentLengthsArrive) {
  run([&](World& world) { check_transfer(world, world.communicator(), count(), kDifferentOffsets); });
}
TEST_P(EveryWorld, BroadcastReachesAllRanksFromEveryRoot) {
  run([&](World& world) { check_broadcast(world, world.communicator(), count()); });
}

TEST_P(EveryWorld, GroupsMoveDataAmongTheirMembers) {
  run([&](World& world) {
    for_each_test_group(world, [&](Communicator& group) {
      check_all_gather(world, group, group_count(), kDifferentOffsets);
      check_all_gather_in_place(world, group, group_count(), 256);
      check_all_to_all(world, group, group_count(), kDifferentOffsets);
      check_transfer(world, group, group_count(), kNoOffsets);
      check_broadcast(world, group, group_count());
    });
  });
}

/// Allocates memory on all ranks of the world, and gathers `count` elements per rank of `group` in it. Rank r allocates
/// r * `bytes_per_rank` bytes more than the gather needs, so sizes differ unless `bytes_per_rank` is 0.
void check_memory_of_the_world(World& world, Communicator& group, int64_t count, int64_t bytes_per_rank) {
  const int64_t part_bytes = count * 4, offset = (part_bytes + 255) / 256 * 256;
  const int64_t needed_bytes = offset + part_bytes * world.rank_count();
  const int64_t own_bytes = needed_bytes + bytes_per_rank * world.rank();
  const int64_t held_bytes = world.device().ledger().held_bytes();
  const RankSizes sizes = bytes_per_rank == 0 ? RankSizes::kEqual : RankSizes::kMayDiffer;
  const SymmetricBuffer whole =
      world.communicator().allocate(own_bytes, sizes, Category::kSlots, "memory of the world");
  EXPECT_EQ(world.device().ledger().held_bytes() - held_bytes, own_bytes);
  std::vector<int> members;
  for (const std::string& rank : group.gather_objects(std::to_string(world.rank()))) members.push_back(std::stoi(rank));
  const SymmetricBuffer view = group.attach(whole, members);
  EXPECT_EQ(view.local(), whole.local());
  EXPECT_EQ(view.size_bytes(), own_bytes);
  // The rank must be able to write at the end of its part too.
  write_part(world, view.local() + own_bytes - part_bytes, group.rank(), 3, count);
  write_part(world, view.local(), group.rank(), 3, count);
  const auto stream = world.device().make_stream(Lane::kGather);
  group.all_gather(*stream, {&view, offset}, {&view, 0}, part_bytes, {"test"});
  finish(group, *stream);
  for (int r = 0; r < group.rank_count(); ++r) expect_part(world, view.local() + offset + r * part_bytes, r, 3, count);
  finish(world.communicator(), *stream);
}

TEST_P(EveryWorld, GroupsMoveDataInMemoryOfTheWorld) {
  run([&](World& world) {
    for_each_test_group(world, [&](Communicator& group) { check_memory_of_the_world(world, group, group_count(), 0); });
  });
}

TEST_P(EveryWorld, GroupsMoveDataInMemoryOfDifferentSizes) {
  run([&](World& world) {
    for_each_test_group(world,
                        [&](Communicator& group) { check_memory_of_the_world(world, group, group_count(), 4096); });
  });
}

/// Every rank fills its complete part, and then reads the complete parts of all ranks that it can address. Each part is
/// checked after all ranks have written, so parts that overlap would differ.
TEST_P(EveryWorldOnce, PartsOfDifferentSizesDoNotOverlap) {
  run([](World& world) {
    auto& ranks = world.communicator();
    const auto content_of = [](int rank) {
      constexpr std::size_t kSizes[] = {4097, 0, 1, 20'000, 4096};
      return std::vector<std::byte>(kSizes[rank % 5], static_cast<std::byte>(rank + 1));
    };
    const auto own = content_of(ranks.rank());
    const auto own_bytes = static_cast<int64_t>(own.size());
    const SymmetricBuffer parts = ranks.allocate(own_bytes, RankSizes::kMayDiffer, Category::kSlots, "parts");
    EXPECT_EQ(parts.size_bytes(), own_bytes);
    write(world, parts.local(), own);
    ranks.gather_objects("written");
    for (int r = 0; r < ranks.rank_count(); ++r) {
      const std::vector<std::byte> expected = content_of(r);
      if (parts.peer(r) == nullptr) continue;  // rank r is on another node
      EXPECT_TRUE(read(world, parts.peer(r), static_cast<int64_t>(expected.size())) == expected) << "part " << r;
    }
    ranks.gather_objects("read");
  });
}

TEST_P(EveryWorld, SharedRangeHasEveryPartWithoutACollective) {
  run([&](World& world) {
    auto& ranks = world.communicator();
    const int64_t part_bytes = count() * 4;
    const auto range =
        ranks.allocate_shared(part_bytes * ranks.rank_count(), part_bytes, Category::kParameters, "shards");
    if (!range) return;  // the ranks do not share memory
    write_part(world, range->writable() + ranks.rank() * part_bytes, ranks.rank(), 2, count());
    const auto stream = world.device().make_stream(Lane::kGather);
    finish(ranks, *stream);
    for (int r = 0; r < ranks.rank_count(); ++r) expect_part(world, range->readable() + r * part_bytes, r, 2, count());
    finish(ranks, *stream);
  });
}

TEST_P(EveryWorld, AwaitProtectsABufferUntilAllRanksHaveReadIt) {
  run([&](World& world) {
    auto& ranks = world.communicator();
    const int64_t part_bytes = count() * 4;
    const auto own = ranks.allocate(part_bytes, Category::kParameters, "own");
    const auto gathered = ranks.allocate(part_bytes * ranks.rank_count(), Category::kSlots, "gathered");
    const auto gather = world.device().make_stream(Lane::kGather);
    const auto compute = world.device().make_stream(Lane::kCompute);
    for (int round = 0; round < 3; ++round) {
      // Before a rank overwrites its part, all ranks must have gathered the part of the previous round.
      ranks.await(*compute, Lane::kGather, round, {"all gathered", round});
      compute->synchronize();  // on a GPU only the stream waits, and write_part() uses another stream
      write_part(world, own.local(), ranks.rank(), round, count());
      ranks.all_gather(*gather, {&gathered, 0}, {&own, 0}, part_bytes, {"test", round});
      ranks.publish(*gather, round + 1);
      gather->synchronize();
      for (int r = 0; r < ranks.rank_count(); ++r)
        expect_part(world, gathered.local() + r * part_bytes, r, round, count());
    }
    finish(ranks, *gather);
  });
}

}  // namespace
}  // namespace aliquot::conformance
