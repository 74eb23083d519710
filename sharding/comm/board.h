#pragma once
// Shared memory in which the ranks of one node signal progress and failures. Standard layout; zeroed memory is valid.

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

/// These functions write and read text that other ranks may access at the same time. There is no data race, but a
/// reader may get parts of both the old and the new text. Text that does not fit into `words` is truncated.
void write_shared(std::span<std::atomic<uint64_t>> words, std::string_view text) noexcept;
std::string read_shared(std::span<const std::atomic<uint64_t>> words);
using SharedText = std::array<std::atomic<uint64_t>, 5>;

/// State of one rank on one lane. A rank arrives at collective n only after it has passed n - 1. A peer may still
/// compare the description of n - 1, so the board must keep at least two descriptions.
struct alignas(64) LaneBoard {
  static constexpr uint64_t kDescriptionDepth = 4;
  SharedCounter arrived;   // sequence number of the last collective at which the rank arrived
  SharedCounter progress;  // highest value passed to publish()
  /// Sequence number of the collective in which the rank waits for ranks of other nodes before it arrives. 0 if it does
  /// not wait for other nodes.
  std::atomic<uint64_t> waiting_for_other_nodes{0};
  std::array<std::atomic<uint64_t>, kDescriptionDepth> descriptions{}, fingerprints{};
  std::atomic<int64_t> step{0};
  SharedText label{};
};

struct alignas(64) RankBoard {
  std::array<LaneBoard, kLaneCount> lanes;
  std::atomic<uint32_t> last_lane{0};
  std::atomic<uint64_t> rendezvous_count{0};  // the rendezvous of the group at which the rank has arrived
  SharedText rendezvous_purpose{};            // of the last one
};

/// The reason for an abort of the group. The first reason is kept, unless its writer died while writing it.
struct alignas(64) AbortNotice {
  enum : uint32_t { kNone, kBeingWritten, kPosted };
  std::atomic<uint32_t> state{kNone};
  std::array<std::atomic<uint64_t>, 120> reason{};

  void post(std::string_view why) noexcept;
  bool posted() const { return state.load(std::memory_order_acquire) == kPosted; }
  std::string why() const { return read_shared(reason); }
};

/// Access to the board of a group, which is one AbortNotice followed by one RankBoard per rank. Does not own the
/// memory.
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

  /// Posts the reason and wakes all waiting threads.
  void abort(std::string_view why) const noexcept;

  /// Describes the last collective at which `rank` arrived on any lane, e.g. "all-gather of 4096 bytes #12 (h.3, step
  /// 118)". Returns "" if it arrived at none.
  std::string last_operation(int rank) const;

  /// If `rank` waits for the rank `awaited` in a rendezvous, returns its purpose. Otherwise returns "".
  std::string rendezvous_of(int rank, int awaited) const;

 private:
  std::byte* memory_;
  int rank_count_;
};

}  // namespace aliquot
