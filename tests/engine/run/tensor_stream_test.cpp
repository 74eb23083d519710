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
        for (std::size_t length = 1; length <= 9; ++length) {
          std::vector<float> values;
          stream.run(std::string(length, 'x'), tensor, [&](int64_t first, std::span<const std::byte> bytes) {
            EXPECT_EQ(first, static_cast<int64_t>(values.size()));
            values.resize(values.size() + bytes.size() / sizeof(float));
            std::memcpy(values.data() + first, bytes.data(), bytes.size());
          });
          ASSERT_EQ(static_cast<int64_t>(values.size()), kCount);
          for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(i));
        }
      },
      testing_model::kHosts);
}

}  // namespace
}  // namespace aliquot
