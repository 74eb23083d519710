#pragma once
// What the ranks of one node tell each other through shared memory. Plain layout, zeroed memory is valid.

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/device/stream.h"
#include "kernels/system/shared_counter.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

/// The words of a text that one rank writes and others may read at any time: torn at worst, never a race. What is longer
/// is cut off.
void write_shared(std::span<std::atomic<uint64_t>> words, std::string_view text) noexcept;
std::string read_shared(std::span<const std::atomic<uint64_t>> words);
using SharedText = std::array<std::atomic<uint64_t>, 5>;

/// One rank's latest on one lane. A rank that has arrived at n has passed n - 1, so a peer still looking at n - 1 finds
/// that description in its place: a depth of two would do.
struct alignas(64) LaneBoard {
  static constexpr uint64_t kDescriptionDepth = 4;
  SharedCounter arrived;   // sequence number of the last collective it came to
  SharedCounter progress;  // what it published
  /// The collective that it has come to but has first to find ranks of other nodes for; 0 where there are none.
  std::atomic<uint64_t> waiting_for_other_nodes{0};
  std::array<std::atomic<uint64_t>, kDescriptionDepth> descriptions{}, fingerprints{};
  std::atomic<int64_t> step{0};
  SharedText label{};
};

struct alignas(64) RankBoard {
  std::array<LaneBoard, kLaneCount> lanes;
  std::atomic<uint32_t> last_lane{0};
};

/// Why everybody should leave; the first reason stays, unless its writer died over it.
struct alignas(64) AbortNotice {
  enum : uint32_t { kNone, kBeingWritten, kPosted };
  std::atomic<uint32_t> state{kNone};
  std::array<std::atomic<uint64_t>, 120> reason{};

  void post(std::string_view why) noexcept;
  bool posted() const { return state.load(std::memory_order_acquire) == kPosted; }
  std::string why() const { return read_shared(reason); }
};

/// The whole board of a group: one notice, then a RankBoard a rank.
class Board {
 public:
  Board(std::byte* memory, int rank_count) : memory_(memory), rank_count_(rank_count) {}
  static int64_t size_bytes(int rank_count) {
    return static_cast<int64_t>(sizeof(AbortNotice) + sizeof(RankBoard) * static_cast<std::size_t>(rank_count));
  }

  int rank_count() const { return rank_count_; }
  AbortNotice& notice() const { return *reinterpret_cast<AbortNotice*>(memory_); }
  RankBoard& rank(int rank) const { return reinterpret_cast<RankBoard*>(memory_ + sizeof(AbortNotice))[rank]; }
  LaneBoard& lane(int rank, Lane lane) const { return this->rank(rank).lanes[static_cast<std::size_t>(lane)]; }

  /// Posts the notice and wakes every sleeper.
  void abort(std::string_view why) const noexcept;

  /// "all-gather of 4096 bytes #12 (h.3, step 118)": the last thing `rank` came to on any lane.
  std::string last_operation(int rank) const;

 private:
  std::byte* memory_;
  int rank_count_;
};

}  // namespace aliquot
