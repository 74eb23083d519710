#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "apps/explain/explain.h"
#include "kernels/system/error.h"
#include "kernels/system/file.h"

namespace aliquot {
namespace {

namespace fs = std::filesystem;

// The size of the largest file that is read. A record with all its entries and one group per rank is smaller.
constexpr int64_t kMaxBytes = 1 << 20;

UsageError refusal(const fs::path& path, std::string_view why) {
  return UsageError(replace_control_characters(fmt::format("--explain {}: {}.", path.string(), why)));
}

/// Converts a FaultError of the file system to a UsageError that names the path.
template <typename Call>
auto with_usage_errors(const fs::path& path, Call&& call) {
  try {
    return call();
  } catch (const FaultError& error) {
    throw refusal(path, error.what());
  }
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  const auto names = with_usage_errors(folder, [&] { return Directory::open(FileSystem::system(), folder).names(); });
  for (const std::string& name : names) {
    if (name.starts_with("flight-") && name.ends_with(".txt")) files.push_back(folder / name);
  }
  if (files.empty()) throw refusal(folder, "the directory has no file named flight-RANK.txt");
  return files;
}

/// Does not follow links or block on pipes, because other users may be able to write to the directory.
std::string text_of(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const File file = Directory::open(FileSystem::system(), folder).open_for_reading(path.filename());
  if (!file.is_regular()) throw refusal(path, "it is not a regular file");
  const int64_t size_bytes = file.size_bytes();
  if (size_bytes > kMaxBytes)
    throw refusal(path, fmt::format("it has {} bytes, but a flight record has at most 1 MiB", size_bytes));
  std::string text(static_cast<size_t>(size_bytes), '\0');
  file.read(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

FlightRecord read_flight(const fs::path& path) {
  std::error_code failed;
  if (!fs::exists(path, failed))
    throw refusal(path, "there is no such file: expected a flight record or a directory of them");
  return parse_flight(with_usage_errors(path, [&] { return text_of(path); }),
                      replace_control_characters(path.string()));
}

struct Found {
  FlightRecord record;
  fs::path file;
  fs::file_time_type changed;

  /// The key that orders records by age. It begins with the time in the record, because a copied file has a new
  /// modification time. Records of older versions of Aliquot contain no time. They count as older than all others.
  std::pair<std::string, fs::file_time_type> time() const { return {record.written_utc, changed}; }
};

using RunRecords = std::map<int, Found>;  // keyed by rank

bool is_older(const RunRecords& a, const RunRecords& b) {
  const auto last = [](const RunRecords& run) {
    auto time = run.begin()->second.time();
    for (const auto& [rank, found] : run) time = std::max(time, found.time());
    return time;
  };
  return last(a) < last(b);
}

/// "runs/a/flight-0000.txt, runs/a/flight-0001.txt and 6 more".
std::string files_text(const RunRecords& run) {
  constexpr size_t kNamed = 4;
  std::vector<std::string> names;
  for (const auto& [rank, found] : run) {
    if (names.size() < kNamed) names.push_back(replace_control_characters(found.file.string()));
  }
  const std::string more = run.size() > kNamed ? fmt::format(" and {} more", run.size() - kNamed) : "";
  return fmt::format("{}{}", fmt::join(names, ", "), more);
}

std::string of_other_run(const RunRecords& run) {
  std::string last;
  for (const auto& [rank, found] : run) last = std::max(last, found.record.written_utc);
  return fmt::format("{} skipped: from another run or world, {}.", files_text(run),
                     last.empty() ? "which recorded no date" : "which ended at " + date_text(last));
}

/// Groups records by run.
class Runs {
 public:
  void add(const fs::path& file) {
    std::error_code failed;
    Found found{read_flight(file), file, fs::last_write_time(file, failed)};
    RunRecords& run = runs_[found.record.run];
    const int rank = found.record.rank;
    const auto [before, first] = run.try_emplace(rank, found);
    if (first || fs::equivalent(before->second.file, file, failed)) return;
    if (before->second.time() < found.time()) std::swap(before->second, found);
    skip_messages_.push_back(replace_control_characters(fmt::format(
        "{} skipped: {} is from the same rank and run.", found.file.string(), before->second.file.string())));
  }

  bool empty() const { return runs_.empty(); }

  /// Moves the records of the newest run to `flights`, with messages about the others. Clears this object.
  void take_newest(FlightRecords& flights) {
    const auto older = [](const auto& a, const auto& b) { return is_older(a.second, b.second); };
    const auto newest = std::ranges::max_element(runs_, older);
    for (auto& [rank, found] : newest->second) flights.records.push_back(std::move(found.record));
    runs_.erase(newest);
    std::ranges::move(skip_messages_, std::back_inserter(flights.skip_messages));
    for (const auto& [name, run] : runs_) flights.skip_messages.push_back(of_other_run(run));
    runs_.clear();
  }

 private:
  std::map<std::string, RunRecords> runs_;
  std::vector<std::string> skip_messages_;
};

}  // namespace

FlightRecords read_flights(const std::vector<fs::path>& places) {
  Runs runs;
  FlightRecords flights;
  std::optional<UsageError> first;
  std::error_code failed;
  for (const fs::path& place : places) {
    if (!fs::is_directory(place, failed)) {
      const fs::path real = fs::canonical(place, failed);  // follows links, but only those that the user names
      runs.add(failed ? place : real);
      continue;
    }
    for (const fs::path& file : files_of(place)) {
      try {
        runs.add(file);
      } catch (const UsageError& error) {
        flights.skip_messages.push_back(fmt::format("{} The file is skipped.", error.what()));
        if (!first) first = error;
      }
    }
  }
  if (runs.empty()) throw UsageError(*first);
  runs.take_newest(flights);
  return flights;
}

}  // namespace aliquot
