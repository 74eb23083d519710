#pragma once
// What a rank leaves behind when something fails: a file that people and `aliquot doctor --explain` read.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"
#include "sharding/comm/operation_description.h"

namespace aliquot {

/// One collective; or a meeting, where ranks tell each other small things on the host and wait for one another. Seconds are
/// of the rank's steady clock; negative: that did not come.
struct FlightEntry {
  uint64_t number = 0;  // of the collectives this rank issued, from 1; of a meeting: how many it had issued before
  int group = 0;
  Lane lane = Lane::kCompute;  // meetings have none
  uint64_t sequence = 0;       // of the group's lane, or of its meetings, from 1
  OperationDescription what = {};
  std::string unit;  // what a meeting is for: "save"
  int64_t step = -1;
  double issued = -1, begun = -1, ended = -1;
  bool is_rendezvous = false;
};

/// A rank keeps so many of the last.
inline constexpr std::size_t kMaxFlightEntries = 256, kMaxFlightRendezvous = 64;

/// What the reason of a rank begins with that did not fail: its launcher ended it.
inline constexpr std::string_view kEndedByLauncher = "told to end by the launcher";

struct FlightRecord {
  std::string run;  // the same in the files of one run
  int rank = 0, rank_count = 1;
  std::string why;                       // the sentence that the rank ended with
  std::string place;                     // where its own thread was, if that is known
  double written = 0;                    // when, on the same clock
  std::string written_utc;               // when, for people: "2026-11-22T03:00:12Z"; empty in records of before
  std::vector<std::vector<int>> groups;  // by number: the members' ranks in the world, this one's among them
  std::vector<FlightEntry> entries;      // collectives in the order of their numbers, at most kMaxFlightEntries
  std::vector<FlightEntry> rendezvous;   // as they came, at most kMaxFlightRendezvous
  bool complete = true;                  // false: the text was cut short, and what it lacks may have come
};

/// `text` as it may stand on a line of a file and of a terminal: control characters are spaces.
std::string replace_control_characters(std::string_view text);

/// A line of its own for each thing, words between tabs.
std::string flight_text(const FlightRecord& record);

/// The record holds what is said above, whoever wrote the text. Throws UsageError, naming `source`, for anything that
/// flight_text() does not write; control characters in names and sentences become spaces. A text that is cut short is read as
/// far as its lines are whole; records of the first version, which say no end, count as whole when their last line is.
FlightRecord parse_flight(std::string_view text, std::string_view source);

}  // namespace aliquot
