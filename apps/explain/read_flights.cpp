#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <span>
#include <system_error>

#include "apps/explain/explain.h"
#include "kernels/error.h"
#include "kernels/file.h"

namespace aliquot {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostBytes = 1 << 20;  // 256 lines, and a group for each rank

UsageError refusal(const fs::path& path, std::string_view why) {
  return UsageError(without_controls(fmt::format("--explain {}: {}.", path.string(), why)));
}

/// What the system refuses is a place that was named wrongly.
template <typename Call>
auto asked_of(const fs::path& path, Call&& call) {
  try {
    return call();
  } catch (const FaultError& error) {
    throw refusal(path, error.what());
  }
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  const auto names = asked_of(folder, [&] { return Directory::open(FileSystem::system(), folder).names(); });
  for (const std::string& name : names) {
    if (name.starts_with("flight-") && name.ends_with(".txt")) files.push_back(folder / name);
  }
  if (files.empty()) throw refusal(folder, "no flight-RANK.txt lies there");
  return files;
}

/// Follows no link, and waits for nobody: strangers may have put anything there.
std::string text_of(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const File file = Directory::open(FileSystem::system(), folder).open_for_reading(path.filename());
  if (!file.is_regular()) throw refusal(path, "it is no regular file");
  const int64_t size_bytes = file.size_bytes();
  if (size_bytes > kMostBytes) throw refusal(path, "it is too long for a flight record");
  std::string text(static_cast<size_t>(size_bytes), '\0');
  file.read(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

FlightRecord read_flight(const fs::path& path) {
  std::error_code failed;
  if (!fs::exists(path, failed)) throw refusal(path, "there is no such file");
  return parse_flight(asked_of(path, [&] { return text_of(path); }), without_controls(path.string()));
}

/// The records of each run, and which run is the newest.
class Runs {
 public:
  void add(const fs::path& file) {
    FlightRecord record = read_flight(file);
    std::error_code failed;
    if (const auto time = fs::last_write_time(file, failed); runs_.empty() || time >= newest_time_) {
      newest_time_ = time;
      newest_ = record.run;
    }
    const int rank = record.rank;
    runs_[record.run][rank] = std::move(record);
  }

  bool empty() const { return runs_.empty(); }
  std::vector<FlightRecord> newest() {
    std::vector<FlightRecord> records;
    for (auto& [rank, record] : runs_[newest_]) records.push_back(std::move(record));
    return records;
  }

 private:
  std::map<std::string, std::map<int, FlightRecord>> runs_;
  std::string newest_;
  fs::file_time_type newest_time_;
};

}  // namespace

Flights read_flights(const std::vector<fs::path>& places) {
  Runs runs;
  Flights flights;
  std::optional<UsageError> first;
  std::error_code failed;
  for (const fs::path& place : places) {
    if (!fs::is_directory(place, failed)) {
      const fs::path real = fs::canonical(place, failed);  // a link that the user names is meant
      runs.add(failed ? place : real);
      continue;
    }
    for (const fs::path& file : files_of(place)) {
      try {
        runs.add(file);
      } catch (const UsageError& error) {
        flights.left_out.push_back(fmt::format("{} It is left out.", error.what()));
        if (!first) first = error;
      }
    }
  }
  if (runs.empty()) throw UsageError(*first);
  flights.records = runs.newest();
  return flights;
}

}  // namespace aliquot
