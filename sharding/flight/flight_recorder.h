#pragma once
// Recorder of a rank's last collectives and rendezvous, for diagnosis after a failure.

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
#include "sharding/flight/flight_world.h"

namespace aliquot {

/// Keeps the last kDepth collectives that one rank issued in all its groups. Each has the times at which it was issued,
/// began (its stream reached it) and ended (its work was done). Keeps the last rendezvous in a separate ring, because a
/// rendezvous may last as long as many collectives. Recording neither locks nor allocates. Thread-safe. Each recorder
/// registers itself for write_flight_records().
class FlightRecorder {
 public:
  static constexpr std::size_t kDepth = kMaxFlightEntries;

  /// `run` identifies the run and is the same on all ranks. If `directory` is empty, no file is written. `world` is a
  /// name for this directory.
  FlightRecorder(int rank, int rank_count, std::string run, std::string directory, FlightWorld world = {});
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  int rank() const { return rank_; }
  /// Adds a group and returns its number. `members` are world ranks, in the order of the group. `name`: see
  /// Communicator::split().
  int add_group(std::vector<int> members, std::string_view name = {});
  /// Sets the mesh that the record contains. A later call replaces it.
  void set_mesh(const FlightMesh& mesh);

  /// Records that collective number `sequence` of the group's lane, counted from 1, was issued. Returns its number on
  /// this rank, which begin() and end() require.
  uint64_t issue(int group, Lane lane, uint64_t sequence, const OperationDescription& what, Label label) noexcept;
  void begin(uint64_t number) noexcept;
  void end(uint64_t number) noexcept;

  /// Records that the rank began rendezvous number `sequence` of the group, counted from 1. Returns the number that
  /// end_rendezvous() requires.
  uint64_t begin_rendezvous(int group, uint64_t sequence, Label purpose) noexcept;
  void end_rendezvous(uint64_t number) noexcept;

  /// Records that the rank's own thread began model code, such as "backward" of the unit `unit`, or ended it. Called
  /// only on that thread.
  void begin_model_code(std::string_view verb, Label unit, int32_t micro_batch) noexcept;
  void end_model_code() noexcept;

  /// Sets what the rank's own thread was executing at a failure, e.g. "backward h.3 (operation 41 of 87, micro-batch 0,
  /// step 118)". Later calls have no effect.
  void set_failure_location(std::string_view place);

  FlightRecord record(std::string_view why) const;
  /// Stores the record in memory for write(), with the reason for the failure. Later calls have no effect.
  void capture(std::string_view why) noexcept;
  /// Writes the captured record, or a current one, to a file named flight_file_name() in the directory. Only the first
  /// call writes a file. Calls during the write wait until it is finished. Logs errors instead of throwing them.
  void write(std::string_view why) noexcept;
  /// Writes a record for a failure that is likely but not certain. A later write() replaces it.
  void write_provisional(std::string_view why) noexcept;
  /// Removes a record that write_provisional() has written and write() has not replaced.
  void discard_provisional() noexcept;

 private:
  struct Slot {
    std::atomic<uint64_t> number{0};  // number of the collective or rendezvous; 0 while the slot changes
    std::atomic<uint64_t> after{0};   // rendezvous only: number of collectives that were issued before it
    std::atomic<int> group{0};
    std::atomic<Lane> lane{Lane::kCompute};
    std::atomic<uint64_t> sequence{0}, what{0};
    std::atomic<int64_t> step{-1};
    std::atomic<int64_t> issued{0}, begun{0}, ended{0};  // times in nanoseconds; 0: has not happened
    SharedText unit{};
  };
  struct ModelCodeSlot {
    std::atomic<uint64_t> number{0};  // executions are numbered from 1; 0 while the slot changes
    std::atomic<int32_t> micro_batch{0};
    std::atomic<int64_t> step{-1};
    std::atomic<int64_t> begun{0}, ended{0};  // times in nanoseconds; 0: has not happened
    SharedText what{};
  };
  Slot& slot(uint64_t number) { return slots_[number % kDepth]; }
  std::vector<FlightEntry> recorded_rendezvous() const;
  std::vector<FlightModelCode> recorded_model_code() const;
  std::string capture_text(std::string_view why);
  void write_file(const std::string& text) const;

  int rank_, rank_count_;
  std::string run_, directory_;
  FlightWorld world_;
  std::array<Slot, kDepth> slots_;
  std::array<Slot, kMaxFlightRendezvous> rendezvous_slots_;
  std::array<ModelCodeSlot, kMaxFlightModelCode> model_code_slots_;
  std::atomic<uint64_t> issued_count_{0}, rendezvous_count_{0}, model_code_count_{0};
  mutable std::mutex mutex_;  // guards groups_, group_names_, mesh_ and place_
  std::vector<std::vector<int>> groups_;
  std::vector<std::string> group_names_;
  std::optional<FlightMesh> mesh_;
  std::string place_;
  std::mutex capture_mutex_;  // guards captured_text_
  std::string captured_text_;
  std::mutex write_mutex_;  // guards written_ and the file
  bool written_ = false, provisional_ = false;
};

/// Calls write() of every recorder of this process. Call it if the process must end before all of its ranks have
/// returned, for example after a signal.
void write_flight_records(std::string_view why) noexcept;
/// Call the functions of the same names of all recorders.
void write_provisional_flight_records(std::string_view why) noexcept;
void discard_provisional_flight_records() noexcept;

/// Returns the file name of a rank's record in the directory: flight-RANK.txt, or flight-RANK-world-WORLD.txt if the
/// name of the world is not empty.
std::string flight_file_name(int rank, std::string_view world = {});

}  // namespace aliquot
