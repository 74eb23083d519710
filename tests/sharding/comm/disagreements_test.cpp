// Tests of thread ranks that issue different collectives. The error must be detected before data is exchanged.
#include <algorithm>
#include <atomic>
#include <functional>
#include <gtest/gtest.h>

#include "sharding/comm/operation_description.h"
#include "tests/support/failing_world.h"

namespace aliquot {
namespace {

TEST(Disagreements, DifferentCountsAreDetectedBeforeDataIsExchanged) {
  std::atomic<int> touched{0};
  const auto message = failure_of(
      2,
      [&](World& world) {
        auto& ranks = world.communicator();
        const auto gathered = ranks.allocate(8192, Category::kSlots, "gathered");
        const auto own = ranks.allocate(4096, Category::kSlots, "own");
        std::fill_n(own.local(), 4096, std::byte{1});
        std::fill_n(gathered.local(), 8192, std::byte{0});
        const auto stream = world.device().make_stream(Lane::kGather);
        try {
          ranks.all_gather(*stream, {&gathered, 0}, {&own, 0}, world.rank() == 0 ? 4096 : 2048, {"h.1"});
          stream->synchronize();
        } catch (...) {
          for (int i = 0; i < 8192; ++i) touched += gathered.local()[i] != std::byte{0};
          throw;
        }
      },
      20);
  expect_contains(message, {"disagree", "#1", "all-gather of 4096 bytes", "all-gather of 2048 bytes"});
  EXPECT_EQ(touched, 0);
}

TEST(Disagreements, DifferentOperationsAreDetected) {
  const auto message = failure_of(
      3,
      [](World& world) {
        auto& ranks = world.communicator();
        const auto stream = world.device().make_stream(Lane::kReduce);
        double number = 1;
        if (world.rank() == 2)
          ranks.all_reduce(*stream, {&number, 1}, Reduction::kSum, {});
        else
          ranks.barrier(*stream, {});
        stream->synchronize();
      },
      20);
  expect_contains(message, {"disagree", "barrier", "all-reduce of 1 numbers"});
}

TEST(Disagreements, ErrorNamesTheDifferentSizes) {
  const auto message = failure_of(
      3,
      [](World& world) {
        world.communicator().allocate(world.rank() == 2 ? 64 << 20 : 4096, Category::kSlots, "the slot");
      },
      20);
  EXPECT_EQ(message, "ranks disagree about the size of the slot: 4096 bytes on rank 0, 67108864 on rank 2");
  const auto shared = failure_of(
      2,
      [](World& world) {
        world.communicator().allocate_shared(4096 * (1 + world.rank()), 4096, Category::kParameters, "the shards");
      },
      20);
  EXPECT_EQ(shared, "ranks disagree about the size of the shards: 4096 bytes on rank 0, 8192 on rank 1");
}

/// Runs `gather` on two ranks and returns the error message.
std::string disagreement_of(const std::function<void(Communicator&, Stream&, int rank)>& gather) {
  return failure_of(
      2,
      [&](World& world) {
        const auto stream = world.device().make_stream(Lane::kGather);
        gather(world.communicator(), *stream, world.rank());
        stream->synchronize();
        world.communicator().gather_objects("end");
      },
      20);
}

/// The receiver expects a different number of bytes than the sender sends. The transfer must write nothing.
TEST(Disagreements, DifferentSizesOfATransferAreDetected) {
  std::atomic<int> touched{0};
  const auto message = disagreement_of([&](Communicator& ranks, Stream& stream, int rank) {
    const auto buffer = ranks.allocate(512, Category::kSlots, "message");
    std::fill_n(buffer.local(), 512, rank == 0 ? std::byte{1} : std::byte{0});
    const Transfer own{0, 1, 0, 0, rank == 0 ? 512 : 256};
    try {
      ranks.transfer(stream, {{&buffer, 0}, {&buffer, 0}, {&own, 1}, own.size_bytes},
                     {"pipeline stage 0 to 1, m2, h.1", 3});
      stream.synchronize();
    } catch (...) {
      for (int i = 0; rank == 1 && i < 512; ++i) touched += buffer.local()[i] != std::byte{0};
      throw;
    }
  });
  expect_contains(message, {"disagree", "512 bytes", "256 bytes", "pipeline stage 0 to 1, m2, h.1"});
  EXPECT_EQ(touched, 0);
}

TEST(Disagreements, DifferentUnitsAreDetected) {
  const auto message = disagreement_of([](Communicator& ranks, Stream& stream, int rank) {
    const auto gathered = ranks.allocate(8192, Category::kSlots, "gathered");
    const auto own = ranks.allocate(4096, Category::kSlots, "own");
    ranks.all_gather(stream, {&gathered, 0}, {&own, 0}, 4096, {rank == 0 ? "h.1" : "h.2", 3});
    stream.synchronize();
  });
  expect_contains(message,
                  {"disagree", "all-gather of 4096 bytes (h.1, step 3)", "all-gather of 4096 bytes (h.2, step 3)"});
}

/// Finds two units with equal packed descriptions, which contain only 8 bits of the fingerprint. The full fingerprints
/// must still reveal the disagreement.
TEST(Disagreements, UnitsWithEqualPackedDescriptionsAreDetected) {
  const auto packed = [](const std::string& unit) {
    return describe_all_gather_in_place({nullptr, 0}, 4096, {unit, 3}).packed();
  };
  std::string colliding_unit;
  for (int unit = 1; unit < 2000 && colliding_unit.empty(); ++unit) {
    if (packed("h." + std::to_string(unit)) == packed("h.0")) colliding_unit = "h." + std::to_string(unit);
  }
  ASSERT_FALSE(colliding_unit.empty());
  const auto message = disagreement_of([&](Communicator& ranks, Stream& stream, int rank) {
    const auto gathered = ranks.allocate(8192, Category::kSlots, "gathered");
    ranks.all_gather_in_place(stream, {&gathered, 0}, 4096, {rank == 0 ? "h.0" : colliding_unit.c_str(), 3});
    stream.synchronize();
  });
  expect_contains(message, {"disagree", "(h.0, step 3)", colliding_unit});
}

TEST(Disagreements, DifferentOffsetsAreDetected) {
  const auto message = disagreement_of([](Communicator& ranks, Stream& stream, int rank) {
    const auto gathered = ranks.allocate(8192, Category::kSlots, "gathered");
    const auto own = ranks.allocate(8192, Category::kSlots, "own");
    ranks.all_gather(stream, {&gathered, 0}, {&own, rank * 4096}, 4096, {"h.1", 3});
    stream.synchronize();
  });
  expect_contains(message, {"disagree", "at a different offset in its buffer"});
}

TEST(Disagreements, AMixOfInPlaceAndOutOfPlaceOperationsIsDetected) {
  const auto message = disagreement_of([](Communicator& ranks, Stream& stream, int rank) {
    const auto gathered = ranks.allocate(8192, Category::kSlots, "gathered");
    const auto own = ranks.allocate(4096, Category::kSlots, "own");
    if (rank == 0) ranks.all_gather(stream, {&gathered, 0}, {&own, 0}, 4096, {});
    if (rank == 1) ranks.all_gather_in_place(stream, {&gathered, 0}, 4096, {});
    stream.synchronize();
  });
  expect_contains(message, {"disagree", "all-gather of 4096 bytes in place"});
}

TEST(Disagreements, DifferentReductionsAreDetected) {
  const auto message = disagreement_of([](Communicator& ranks, Stream& stream, int rank) {
    double number = 1;
    ranks.all_reduce(stream, {&number, 1}, rank == 0 ? Reduction::kSum : Reduction::kMax, {});
    stream.synchronize();
  });
  expect_contains(message, {"disagree", "all-reduce of 1 numbers (sum)", "all-reduce of 1 numbers (maximum)"});
}

}  // namespace
}  // namespace aliquot
