#pragma once
// What the ranks' flight records, put side by side, say of a failure.

#include <filesystem>
#include <string>
#include <vector>

#include "sharding/flight/flight_file.h"

namespace aliquot {

/// In words: which rank did what different, which never came, which came last; then a line a rank. The records are of one run,
/// a rank each; of ranks without one, that is said too.
std::string explain(std::vector<FlightRecord> records);

/// "2026-11-22 03:00:12 UTC" of "2026-11-22T03:00:12Z", which records have.
std::string date_text(std::string utc);

struct FlightRecords {
  std::vector<FlightRecord> records;  // one or more, of one run, a rank each
  std::vector<std::string>
      skip_messages;  // sentences that name files: of directories what is no record, and records of other runs
};

/// Reads the files, and those of directories, whoever wrote them; where several runs left some, those of the run that ended
/// last: by the time that records say, or else by that of their files. Throws UsageError for a file that cannot be read or is
/// no record; of directories, where no file is one.
FlightRecords read_flights(const std::vector<std::filesystem::path>& places);

}  // namespace aliquot
