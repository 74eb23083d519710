#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <map>

#include "apps/explain/explain.h"
#include "kernels/error.h"

namespace aliquot {
namespace {

constexpr int64_t kMostBytes = 1 << 20;  // 256 lines, and a group for each rank

std::vector<std::filesystem::path> files_of(const std::filesystem::path& place) {
  if (!std::filesystem::is_directory(place)) return {place};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(place)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("flight-") && name.ends_with(".txt")) files.push_back(entry.path());
  }
  if (files.empty()) throw UsageError(fmt::format("--explain {}: no flight-RANK.txt lies there.", place.string()));
  return files;
}

FlightRecord read_flight(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  if (!std::filesystem::is_regular_file(path) || !file)
    throw UsageError(fmt::format("--explain {}: there is no such file.", path.string()));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (static_cast<int64_t>(text.size()) > kMostBytes)
    throw UsageError(fmt::format("--explain {}: it is too long for a flight record.", path.string()));
  return parse_flight(text, path.string());
}

}  // namespace

std::vector<FlightRecord> read_flights(const std::vector<std::filesystem::path>& places) {
  std::map<std::string, std::map<int, FlightRecord>> runs;
  std::string newest;
  std::filesystem::file_time_type newest_time = std::filesystem::file_time_type::min();
  for (const auto& place : places) {
    for (const auto& file : files_of(place)) {
      FlightRecord record = read_flight(file);
      if (const auto time = std::filesystem::last_write_time(file); time >= newest_time) {
        newest_time = time;
        newest = record.run;
      }
      const int rank = record.rank;
      runs[record.run][rank] = std::move(record);
    }
  }
  std::vector<FlightRecord> records;
  for (auto& [rank, record] : runs[newest]) records.push_back(std::move(record));
  return records;
}

}  // namespace aliquot
