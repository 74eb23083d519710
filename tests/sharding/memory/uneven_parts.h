#pragma once
// Checks of memory in which each rank has a part that the other ranks can read, and the parts have different sizes.
// Tests call the checks with each kind of memory that the ranks of a node can share.

#include <algorithm>
#include <gtest/gtest.h>

#include "kernels/system/ledger.h"
#include "sharding/memory/peer_memory.h"
#include "tests/support/recording_node_memory.h"

namespace aliquot::test {

constexpr int64_t round_to_pages(int64_t size_bytes) { return (size_bytes + 4095) / 4096 * 4096; }

/// Allocates parts of different sizes. Every rank fills its part with its number and checks the parts of all ranks.
/// Expects that the mapping has the sum of the sizes, rounded up to pages. Collective.
inline void check_uneven_parts(std::unique_ptr<NodeMemory> node_memory, Bootstrap& bootstrap) {
  constexpr int64_t kSizes[] = {10'000, 0, 1, 4096, 100'000};
  const auto size_of = [&](int rank) { return kSizes[rank % 5]; };
  std::vector<MadeMapping> made;
  RecordingNodeMemory memory(std::move(node_memory), made);
  Ledger ledger;
  const auto peer_memory = make_host_peer_memory(memory, ledger, bootstrap);
  const SymmetricBuffer parts =
      peer_memory->allocate(size_of(bootstrap.rank()), RankSizes::kMayDiffer, Category::kSlots, "parts");
  int64_t expected_bytes = 0;
  for (int r = 0; r < bootstrap.rank_count(); ++r) expected_bytes += round_to_pages(size_of(r));
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].size_bytes, expected_bytes);
  EXPECT_EQ(ledger.held_bytes(), size_of(bootstrap.rank()));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(parts.local()) % 4096, 0u);

  std::fill_n(parts.local(), size_of(bootstrap.rank()), static_cast<std::byte>(bootstrap.rank() + 1));
  bootstrap.all_gather("written");
  for (int r = 0; r < bootstrap.rank_count(); ++r) {
    EXPECT_EQ(std::count(parts.peer(r), parts.peer(r) + size_of(r), static_cast<std::byte>(r + 1)), size_of(r))
        << "part " << r;
  }
  bootstrap.all_gather("read");
}

/// Allocates a part on each rank: half of the available memory on rank 0, and one page on each other rank. No rank
/// writes to the parts. Collective.
inline void check_one_large_part(std::unique_ptr<NodeMemory> node_memory, Bootstrap& bootstrap,
                                 int64_t available_bytes) {
  std::vector<MadeMapping> made;
  RecordingNodeMemory memory(std::move(node_memory), made);
  Ledger ledger;
  const auto peer_memory = make_host_peer_memory(memory, ledger, bootstrap);
  const int64_t own_bytes = bootstrap.rank() == 0 ? available_bytes / 2 / 4096 * 4096 : 4096;
  SymmetricBuffer parts;
  EXPECT_NO_THROW(parts = peer_memory->allocate(own_bytes, RankSizes::kMayDiffer, Category::kSlots, "parts"));
  if (bootstrap.rank() != 0 || parts.local() == nullptr) return;
  EXPECT_EQ(made[0].size_bytes, own_bytes + (bootstrap.rank_count() - 1) * 4096);
}

}  // namespace aliquot::test
