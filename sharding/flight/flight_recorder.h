#pragma once
// The last collectives of a rank, kept for the moment when something fails.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/comm/board.h"
#include "sharding/comm/operation_description.h"
#include "sharding/flight/flight_file.h"

namespace aliquot {

/// A ring of the last kDepth collectives that one rank issued, in all its groups, with when each was issued, begun (its
/// stream came to it) and ended (all ranks had come, and the bytes were here); and one of the last meetings, which wait on the
/// host, some of them long beside many collectives. Noting one neither locks nor allocates. Any thread, but where it is said
/// otherwise. While it lives, write_flight_records() reaches it.
class FlightRecorder {
 public:
  static constexpr std::size_t kDepth = kMaxFlightEntries;

  /// `run` is the same on all ranks, and other in another run. Nothing is ever written where `directory` is empty.
  FlightRecorder(int rank, int rank_count, std::string run, std::string directory);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  int rank() const { return rank_; }
  /// A group, by its members' ranks in the world, in its own order: the number that its collectives are noted with.
  int add_group(std::vector<int> members);

  /// The `sequence`-th collective of that group's lane, counted from 1. Returns what begin() and end() are told.
  uint64_t issue(int group, Lane lane, uint64_t sequence, const OperationDescription& what, Label label) noexcept;
  void begin(uint64_t number) noexcept;
  void end(uint64_t number) noexcept;

  /// The rank comes to the `sequence`-th meeting of that group, counted from 1. Returns what end_rendezvous() is told when all have come.
  uint64_t begin_rendezvous(int group, uint64_t sequence, Label purpose) noexcept;
  void end_rendezvous(uint64_t meeting) noexcept;

  /// Where the rank's own thread was when something failed: "backward h.3 (operation 41 of 87, micro-batch 0, step 118)".
  /// The first stays.
  void set_failure_location(std::string_view place);

  FlightRecord record(std::string_view why) const;
  /// Keeps what write() is to write: the rank failed for this reason, now. The first stays. In memory, at once.
  void capture(std::string_view why) noexcept;
  /// Writes the record to flight-RANK.txt in the directory, at the first call alone: what was taken, or is now. Who calls while
  /// it is being written waits until it is. What goes wrong is told to the log sink, never thrown.
  void write(std::string_view why) noexcept;

 private:
  struct Slot {
    std::atomic<uint64_t> number{0};  // of the collective or the meeting it holds; 0 while that changes
    std::atomic<uint64_t> after{0};   // of a meeting: how many collectives were issued before
    std::atomic<int> group{0};
    std::atomic<Lane> lane{Lane::kCompute};
    std::atomic<uint64_t> sequence{0}, what{0};
    std::atomic<int64_t> step{-1}, issued{0}, begun{0}, ended{0};  // nanoseconds; 0: not yet
    SharedText unit{};
  };
  Slot& slot(uint64_t number) { return slots_[number % kDepth]; }
  std::vector<FlightEntry> recorded_rendezvous() const;
  std::string capture_text(std::string_view why);
  void write_file(const std::string& text) const;

  int rank_, rank_count_;
  std::string run_, directory_;
  std::array<Slot, kDepth> slots_;
  std::array<Slot, kMaxFlightRendezvous> rendezvous_slots_;
  std::atomic<uint64_t> issued_count_{0}, rendezvous_count_{0};
  mutable std::mutex mutex_;  // of the two below
  std::vector<std::vector<int>> groups_;
  std::string place_;
  std::mutex capture_mutex_;  // of the text
  std::string captured_text_;
  std::mutex write_mutex_;  // of the file
  bool written_ = false;
};

/// Has every recorder of this process write, for an end that no rank can tell of: a signal.
void write_flight_records(std::string_view why) noexcept;

/// Where a rank's record lies.
std::string flight_file_name(int rank);

}  // namespace aliquot
