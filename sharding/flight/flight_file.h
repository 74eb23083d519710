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
  /// The collectives of a rank are numbered from 1. A rendezvous has the number of the last collective before it, or 0.
  uint64_t number = 0;
  int group = 0;               // index in FlightRecord::groups
  Lane lane = Lane::kCompute;  // unused for rendezvous
  /// Collectives are counted from 1 in each lane of each group, and rendezvous in each group.
  uint64_t sequence = 0;
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
  double written = 0;                       // when the record was written, in seconds of the rank's steady clock
  std::string written_utc;                  // the same time, such as "2026-11-22T03:00:12Z"; empty in version 1
  std::optional<FlightMesh> mesh;           // missing if no engine was made, and in older records
  std::vector<std::vector<int>> groups;     // world ranks of each group to which this rank belongs
  std::vector<std::string> group_names;     // name of each group, see Communicator::split(); empty: no name
  std::vector<FlightEntry> entries;         // last collectives, by increasing number; at most kMaxFlightEntries
  std::vector<FlightEntry> rendezvous;      // last rendezvous, the oldest first; at most kMaxFlightRendezvous
  std::vector<FlightModelCode> model_code;  // last executions, the oldest first; at most kMaxFlightModelCode
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
