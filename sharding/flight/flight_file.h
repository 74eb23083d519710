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

/// One collective or one rendezvous. Times are seconds of the rank's steady clock; negative means that the event did
/// not happen.
struct FlightEntry {
  uint64_t number = 0;         // counts the collectives of this rank from 1; rendezvous: collectives issued before it
  int group = 0;               // index in FlightRecord::groups
  Lane lane = Lane::kCompute;  // unused for rendezvous
  uint64_t sequence = 0;       // counts the collectives of the group's lane, or the group's rendezvous, from 1
  OperationDescription what = {};
  std::string unit;  // purpose of a rendezvous, such as "save"
  int64_t step = -1;
  double issued = -1, begun = -1, ended = -1;
  bool is_rendezvous = false;
};

/// The number of collectives and rendezvous that a rank keeps.
inline constexpr std::size_t kMaxFlightEntries = 256, kMaxFlightRendezvous = 64;

/// The beginning of FlightRecord::why for a rank that did not fail, but was ended by its launcher.
inline constexpr std::string_view kEndedByLauncher = "told to end by the launcher";

struct FlightRecord {
  std::string run;  // identifier of the run, the same in all its records
  int rank = 0, rank_count = 1;
  std::string why;                       // the error message with which the rank ended
  std::string place;                     // position of the rank's own thread, if known
  double written = 0;                    // time of the record, on the same clock as the entries
  std::string written_utc;               // the same as "2026-11-22T03:00:12Z"; empty in records of version 1
  std::vector<std::vector<int>> groups;  // world ranks of the members of each group; contains this rank
  std::vector<FlightEntry> entries;      // collectives by increasing number, at most kMaxFlightEntries
  std::vector<FlightEntry> rendezvous;   // in order, at most kMaxFlightRendezvous
  bool complete = true;                  // false: the file is truncated, and entries may be missing
};

/// Replaces control characters by spaces, so that `text` can be printed in one line of a file or terminal.
std::string replace_control_characters(std::string_view text);

/// Formats a record: one line per item, with fields separated by tabs.
std::string flight_text(const FlightRecord& record);

/// Parses untrusted text. Throws UsageError, naming `source`, for text that flight_text() cannot produce. Control
/// characters in names and messages become spaces. Of a truncated text, the complete lines are parsed. Records of
/// version 1 have no end line; they count as complete if their last line is.
FlightRecord parse_flight(std::string_view text, std::string_view source);

}  // namespace aliquot
