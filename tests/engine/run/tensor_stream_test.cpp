// Tests that TensorStream streams a sharded tensor to all ranks of a group.
#include "engine/run/tensor_stream.h"

#include <cstring>
#include <gtest/gtest.h>

#include "sharding/world.h"
#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

constexpr int64_t kCount = 21;  // elements of the tensor; element i has the value i
constexpr int64_t kStagingBytes = 6 * 8;

/// Computes the elements of a piece in read(). Expects that `to` is aligned, because loops over floats require it.
class ComputedElements final : public PieceAccess {
 public:
  void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(to) % alignof(float), 0u);
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(piece.offset + first + i);
      std::memcpy(to + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
    }
  }
  void write(const StatePiece&, int64_t, int64_t, const std::byte*) const override { ADD_FAILURE(); }
};

/// Calls stream.run() and expects that it delivers each element once, in order.
void expect_elements(TensorStream& stream, const std::string& what, const StateTensor& tensor) {
  std::vector<float> values;
  stream.run(what, tensor, [&](int64_t first, std::span<const std::byte> bytes) {
    EXPECT_EQ(first, static_cast<int64_t>(values.size()));
    values.resize(values.size() + bytes.size() / sizeof(float));
    std::memcpy(values.data() + first, bytes.data(), bytes.size());
  });
  ASSERT_EQ(static_cast<int64_t>(values.size()), kCount);
  for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(i));
}

/// Each rank owns a piece of 3 and a piece of 4 elements. The test tries purpose strings of
/// several lengths, because the elements must be aligned in memory for any length.
TEST(TensorStream, ReadsEveryElementIntoAlignedMemory) {
  World::threads(
      3,
      [](World& world) {
        const ComputedElements elements;
        const int64_t r = world.rank();
        const StateTensor tensor{.path = "parameters/w",
                                 .shape = {kCount},
                                 .pieces = {{.offset = 3 * r, .count = 3}, {.offset = 9 + 4 * r, .count = 4}},
                                 .access = &elements};
        Ledger ledger;
        TensorStream stream(world.communicator(), ledger, kStagingBytes);
        for (std::size_t length = 1; length <= 9; ++length) expect_elements(stream, std::string(length, 'x'), tensor);
      },
      testing_model::kHosts);
}

/// The ranks own the columns of a matrix of 3 rows: 2, 4 and 1 of 7 columns. In memory, the rows of rank 1 have gaps.
TEST(TensorStream, StreamsPiecesOfSeveralRuns) {
  World::threads(
      3,
      [](World& world) {
        constexpr std::array<int64_t, 4> kBounds = {0, 2, 6, 7};
        const auto r = static_cast<std::size_t>(world.rank());
        const int64_t run = kBounds[r + 1] - kBounds[r], spacing = r == 1 ? 5 : run;
        std::vector<float> memory(15, -1.0f);
        for (int64_t i = 0; i < 3 * run; ++i)
          memory[static_cast<std::size_t>(i / run * spacing + i % run)] =
              static_cast<float>(kBounds[r] + i / run * 7 + i % run);
        const StateTensor tensor{.path = "parameters/w",
                                 .shape = {3, 7},
                                 .pieces = {{.offset = kBounds[r],
                                             .count = 3 * run,
                                             .bytes = reinterpret_cast<std::byte*>(memory.data()),
                                             .run = run,
                                             .stride = 7,
                                             .memory_stride = r == 1 ? spacing : 0}}};
        Ledger ledger;
        TensorStream stream(world.communicator(), ledger, kStagingBytes);
        expect_elements(stream, "x", tensor);
      },
      testing_model::kHosts);
}

}  // namespace
}  // namespace aliquot
