#pragma once
// Flight records: text files that ranks write after a failure, for people and for `aliquot doctor --explain`.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"
#include "sharding/comm/operation_description.h"

namespace aliquot {

/// One collective or one rendezvous. Times are in seconds of the rank's steady clock. A negative time means that the
/// event did not happen.
struct FlightEntry {
  /// The number of a collective on this rank, from 1. For a rendezvous: the number of collectives issued before it.
  uint64_t number = 0;
  int group = 0;               // index in FlightRecord::groups
  Lane lane = Lane::kCompute;  // unused for rendezvous
  uint64_t sequence = 0;       // counted from 1 in each lane of the group; for a rendezvous, in the group
  OperationDescription what = {};
  std::string unit;  // for rendezvous: the purpose, such as "save"
  int64_t step = -1;
  double issued = -1, begun = -1, ended = -1;
  bool is_rendezvous = false;
};

/// The maximum numbers of collectives and of rendezvous in a record.
inline constexpr std::size_t kMaxFlightEntries = 256, kMaxFlightRendezvous = 64;

/// FlightRecord::why begins with this text if the rank did not fail, but its launcher ended it.
inline constexpr std::string_view kEndedByLauncher = "told to end by the launcher";

struct FlightRecord {
  std::string run;  // identifier of the run; the same on all ranks
  int rank = 0, rank_count = 1;
  std::string why;                       // the error message with which the rank ended
  std::string place;                     // what the rank's own thread was executing, if known
  double written = 0;                    // when the record was written, by the clock of FlightEntry
  std::string written_utc;               // the same time, such as "2026-11-22T03:00:12Z"; empty in version 1
  std::vector<std::vector<int>> groups;  // the world ranks of each group to which this rank belongs
  std::vector<FlightEntry> entries;      // at most kMaxFlightEntries, by increasing number
  std::vector<FlightEntry> rendezvous;   // in order, at most kMaxFlightRendezvous
  bool complete = true;                  // false: the file is truncated, and entries may be missing
};

/// Replaces control characters by spaces, so that `text` can be printed in one line of a file or terminal.
std::string replace_control_characters(std::string_view text);

/// Formats a record: one line per item, with fields separated by tabs.
std::string flight_text(const FlightRecord& record);

/// Parses untrusted text. Throws UsageError, naming `source`, for text that flight_text() cannot produce. Control
/// characters in names and messages become spaces. If the text is truncated, only its complete lines are parsed.
/// Records of version 1 have no end line. They count as complete if their last line is complete.
FlightRecord parse_flight(std::string_view text, std::string_view source);

}  // namespace aliquot
