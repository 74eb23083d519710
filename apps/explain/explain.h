#pragma once
// Explains a failed run from the flight records of its ranks.

#include <filesystem>
#include <string>
#include <vector>

#include "sharding/flight/flight_file.h"

namespace aliquot {

/// The report of `aliquot doctor --explain`: ranks that issued a different operation, ranks that never arrived,
/// stragglers and ranks without a record; then the message of each rank. `records` has at least one record, all of one
/// run, and at most one for each rank.
std::string explain(std::vector<FlightRecord> records);

/// Converts "2026-11-22T03:00:12Z", the format in records, to "2026-11-22 03:00:12 UTC".
std::string date_text(std::string utc);

struct FlightRecords {
  std::vector<FlightRecord> records;       // one or more, all of one run, at most one for each rank
  std::vector<std::string> skip_messages;  // one sentence for each file, and for each other run, that was skipped
};

/// Reads flight records from files and directories, whose content is not trusted. If there are records of several runs,
/// returns those of the run that ended last, by the times in the records. Runs without these times count as older; the
/// modification times of their files order them. Throws UsageError if a named file is not a readable record, or if the
/// places contain no record at all.
FlightRecords read_flights(const std::vector<std::filesystem::path>& places);

}  // namespace aliquot
