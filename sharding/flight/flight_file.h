#pragma once
// Flight records: text files that ranks write after a failure, for people and for `aliquot doctor --explain`.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"
#include "sharding/comm/operation_description.h"

namespace aliquot {

/// One collective or one rendezvous. Times are in seconds of the rank's steady clock. A negative time means that the
/// event did not happen.
struct FlightEntry {
  uint64_t number = 0;         // collectives of this rank, counted from 1; rendezvous: collectives before it
  int group = 0;               // index in FlightRecord::groups
  Lane lane = Lane::kCompute;  // unused for rendezvous
  uint64_t sequence = 0;       // counted from 1 in each lane of the group; rendezvous: in the group
  OperationDescription what = {};
  std::string unit;  // for rendezvous: the purpose, such as "save"
  int64_t step = -1;
  double issued = -1, begun = -1, ended = -1;
  bool is_rendezvous = false;
};

/// One execution of model code: the forward, recompute or backward of a use. Times are as in FlightEntry.
struct FlightModelCode {
  std::string what;  // "backward h.1"
  int32_t micro_batch = 0;
  int64_t step = -1;
  double begun = -1, ended = -1;
};

/// The numbers of ranks in each dimension of the mesh, and the coordinates of the record's rank.
struct FlightMesh {
  static constexpr std::array<std::string_view, 4> kDimensions = {"pipeline", "replica", "shard", "tensor"};
  std::array<int, 4> counts{}, coordinates{};  // in the order of kDimensions
};

/// The maximum numbers of collectives, of rendezvous and of executions of model code in a record.
inline constexpr std::size_t kMaxFlightEntries = 256, kMaxFlightRendezvous = 64, kMaxFlightModelCode = 16;

/// The first line of a record. Version 1 has no end line and no rendezvous.
inline constexpr std::string_view kFlightTitle = "aliquot flight record 2";
inline constexpr std::string_view kFlightTitleWithoutEnd = "aliquot flight record 1";

/// FlightRecord::why begins with this text if the rank did not fail, but its launcher ended it.
inline constexpr std::string_view kEndedByLauncher = "told to end by the launcher";

struct FlightRecord {
  std::string run;  // identifier of the run; the same on all ranks
  int rank = 0, rank_count = 1;
  std::string why;                          // the error message with which the rank ended
  std::string place;                        // what the rank's own thread was executing, if known
  double written = 0;                       // when the record was written, on the clock of the entries
  std::string written_utc;                  // the same time, such as "2026-11-22T03:00:12Z"; empty in version 1
  std::optional<FlightMesh> mesh;           // missing if no engine was made, and in older records
  std::vector<std::vector<int>> groups;     // world ranks of each group, which contains this rank
  std::vector<std::string> group_names;     // by group, see Communicator::split(); empty: no name
  std::vector<FlightEntry> entries;         // at most kMaxFlightEntries, by increasing number
  std::vector<FlightEntry> rendezvous;      // in order, at most kMaxFlightRendezvous
  std::vector<FlightModelCode> model_code;  // in order, at most kMaxFlightModelCode
  bool complete = true;                     // false: the file is truncated, and entries may be missing
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
