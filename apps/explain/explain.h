#pragma once
// What the ranks' flight records, put side by side, say of a failure.

#include <filesystem>
#include <string>
#include <vector>

#include "sharding/flight_file.h"

namespace aliquot {

/// In words: which rank did what different, which never came, which came last; then a line a rank. The records are of one run,
/// a rank each; of ranks without one, that is said too.
std::string explain(std::vector<FlightRecord> records);

struct Flights {
  std::vector<FlightRecord> records;  // one or more, of one run, a rank each
  std::vector<std::string> left_out;  // a sentence for each file of a directory that is no record
};

/// Reads the files, and those of directories, whoever wrote them; where several runs left some, those of the newest. Throws
/// UsageError for a file that cannot be read or is no record; of directories, where no file is one.
Flights read_flights(const std::vector<std::filesystem::path>& places);

}  // namespace aliquot
