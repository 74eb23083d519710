// Conformance tests of transfers between neighbors in a line of ranks, as pipeline stages make them: each boundary has
// a communicator of two ranks for each direction.
#include <array>
#include <memory>
#include <string>

#include "kernels/elementwise/kernels.h"
#include "tests/sharding/conformance/conformance.h"

namespace aliquot::conformance {
namespace {

constexpr std::array<int64_t, 8> kSizes = {0, 1, 3, 255, 256, 257, 4099, (int64_t{1} << 20) + 13};
constexpr int64_t kBytesAfter = 300;  // unused bytes after each message, to detect writes past its end

/// Returns the byte offset of a message in its buffer. offset_of(kSizes.size()) is the size of the buffer.
constexpr int64_t offset_of(std::size_t message) {
  int64_t offset = 0;
  for (std::size_t m = 0; m < message; ++m) offset += (kSizes[m] + kBytesAfter + 255) / 256 * 256;
  return offset;
}

/// One direction of a boundary. Messages go from the earlier rank to the later one if `forward`, otherwise back.
struct Direction {
  int boundary = 0;
  bool forward = true, sends = false;
  std::unique_ptr<Communicator> pair;
  std::unique_ptr<Stream> lane;
  Transfer transfer_of(int64_t offset, int64_t size_bytes) const {
    const int source = forward ? 0 : 1;
    return {source, 1 - source, offset, offset, size_bytes};
  }
  void transfer(const SymmetricBuffer& buffer, const Transfer& own, Label label) const {
    const SymmetricRange range{&buffer, 0};
    pair->transfer(*lane, {.to = range, .from = range, .own = {&own, 1}, .all_bytes = own.size_bytes}, label);
    pair->barrier(*lane, label);
  }
};

/// The directions of this rank, in the order of their boundaries. Boundary b is between ranks b and b + 1. The last
/// boundary is between the last rank and rank 0. Neighboring boundaries use different lanes, with one exception:
/// if the number of boundaries is odd, the last and the first boundary use the same lanes.
std::vector<Direction> directions_of(World& world) {
  std::vector<Direction> own;
  const int n = world.rank_count(), r = world.rank();
  for (int boundary = 0; boundary < n && n > 1; ++boundary) {
    const bool earlier = r == boundary, later = r == (boundary + 1) % n;
    for (const bool forward : {true, false}) {
      auto pair = world.communicator().split(earlier || later ? 0 : 1, earlier ? 0 : 1);
      if (!earlier && !later) continue;
      const Lane lane = boundary % 2 == 0 ? (forward ? Lane::kForward0 : Lane::kBackward0)
                                          : (forward ? Lane::kForward1 : Lane::kBackward1);
      own.push_back({boundary, forward, forward == earlier, std::move(pair), world.device().make_stream(lane)});
    }
  }
  return own;
}

void synchronize(World& world, const std::vector<Direction>& directions) {
  for (const Direction& each : directions) each.lane->synchronize();
  world.communicator().gather_objects("end");
}

std::vector<std::byte> message_bytes(const Direction& from, std::size_t message, int64_t size_bytes) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(size_bytes));
  const std::size_t salt = static_cast<std::size_t>(from.boundary) * 31 + (from.forward ? 0 : 17) + message * 7;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(salt + i * (1 + salt % 5) + i / 256);
  return bytes;
}

/// All messages of all boundaries are enqueued before any is awaited. Bytes after a message remain unchanged.
TEST_P(EveryWorldOnce, NeighborsTransferAnyNumberOfBytesInBothDirections) {
  run([&](World& world) {
    const std::vector<Direction> directions = directions_of(world);
    std::vector<SymmetricBuffer> buffers;
    std::vector<std::array<Transfer, kSizes.size()>> transfers(directions.size());
    for (const Direction& each : directions) {
      buffers.push_back(each.pair->allocate(offset_of(kSizes.size()), Category::kSlots, "in"));
      for (std::size_t m = 0; m < kSizes.size(); ++m) {
        std::byte* slot = buffers.back().local() + offset_of(m);
        write(world, slot, std::vector<std::byte>(static_cast<std::size_t>(kSizes[m] + kBytesAfter), std::byte{0xA5}));
        if (each.sends) write(world, slot, message_bytes(each, m, kSizes[m]));
      }
    }
    for (std::size_t d = 0; d < directions.size(); ++d) {
      for (std::size_t m = 0; m < kSizes.size(); ++m) {
        transfers[d][m] = directions[d].transfer_of(offset_of(m), kSizes[m]);
        directions[d].transfer(buffers[d], transfers[d][m], {"any size", static_cast<int64_t>(m)});
      }
    }
    synchronize(world, directions);
    for (std::size_t d = 0; d < directions.size(); ++d) {
      for (std::size_t m = 0; m < kSizes.size(); ++m) {
        std::vector<std::byte> expected = message_bytes(directions[d], m, kSizes[m]);
        expected.resize(expected.size() + kBytesAfter, std::byte{0xA5});
        const std::byte* slot = buffers[d].local() + offset_of(m);
        EXPECT_TRUE(read(world, slot, kSizes[m] + kBytesAfter) == expected)
            << kSizes[m] << " bytes at boundary " << directions[d].boundary << (directions[d].forward ? "" : ", back");
      }
    }
    world.communicator().gather_objects("end");
  });
}

/// The sender overwrites its only buffer as soon as its lane allows it, and the receiver copies each message out of its
/// only buffer. The ranks wait for nothing before all messages are enqueued.
TEST_P(EveryWorldOnce, ManyTransfersInFlightReuseOneBuffer) {
  constexpr int kMessages = 60;
  constexpr int64_t kCount = 1031, kBytes = kCount * 4;
  run([&](World& world) {
    const std::vector<Direction> directions = directions_of(world);
    std::vector<SymmetricBuffer> buffers, received;
    std::vector<Transfer> transfers;
    for (const Direction& each : directions) {
      buffers.push_back(each.pair->allocate(kBytes, Category::kSlots, "message"));
      received.push_back(each.pair->allocate(kBytes * kMessages, Category::kSlots, "received"));
      transfers.push_back(each.transfer_of(0, kBytes));
    }
    const auto number = [](const Direction& from, int m) {
      return static_cast<float>(1000 * from.boundary + (from.forward ? 0 : 500) + m);
    };
    const Kernels& kernels = world.device().kernels();
    for (int m = 0; m < kMessages; ++m) {
      for (std::size_t d = 0; d < directions.size(); ++d) {
        const Direction& each = directions[d];
        if (each.sends) kernels.fill(*each.lane, buffers[d].local(), DType::kFloat32, number(each, m), kCount);
        each.transfer(buffers[d], transfers[d], {"many", m});
        if (!each.sends) kernels.copy(*each.lane, received[d].local() + m * kBytes, buffers[d].local(), kBytes);
      }
    }
    synchronize(world, directions);
    for (std::size_t d = 0; d < directions.size(); ++d) {
      if (directions[d].sends) continue;
      const std::vector<std::byte> bytes = read(world, received[d].local(), kBytes * kMessages);
      const auto* values = reinterpret_cast<const float*>(bytes.data());
      int wrong = 0;
      for (int m = 0; m < kMessages; ++m) {
        const float expected = number(directions[d], m);
        wrong += std::any_of(values + m * kCount, values + (m + 1) * kCount, [&](float v) { return v != expected; });
      }
      EXPECT_EQ(wrong, 0) << "messages at boundary " << directions[d].boundary;
    }
    world.communicator().gather_objects("end");
  });
}

}  // namespace
}  // namespace aliquot::conformance
