// Parser of flight records.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <set>
#include <span>

#include "kernels/system/error.h"
#include "sharding/flight/flight_file.h"

namespace aliquot {
namespace {

constexpr int kMaxRanks = 1 << 20;
constexpr std::size_t kMaxGroups = 1 << 14;
constexpr std::size_t kEntryFields = 12, kRendezvousFields = 8, kModelCodeFields = 6;

std::vector<std::string_view> split_fields(std::string_view line, char between) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at <= line.size();) {
    const std::size_t end = std::min(line.find(between, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

/// Parses one file line by line. All errors name the file.
class Reader {
 public:
  Reader(std::string_view text, std::string_view source) : rest_(text), source_(source) {}

  FlightRecord read() {
    const std::string_view title = next();
    if (title != kFlightTitle && title != kFlightTitleWithoutEnd)
      fail(fmt::format("expected the title \"{}\"", kFlightTitle));
    // Excludes an incomplete last line. rfind() returns npos if there is no newline, and npos + 1 is 0.
    const std::size_t end_of_lines = rest_.rfind('\n') + 1;
    record_.complete = title == kFlightTitleWithoutEnd && end_of_lines == rest_.size();
    rest_ = rest_.substr(0, end_of_lines);
    while (!rest_.empty()) read_line(split_fields(next(), '\t'));
    require_keys();
    if (!seen_keys_.contains("coordinates")) record_.mesh.reset();  // the record is truncated between the two lines
    return std::move(record_);
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    throw UsageError(fmt::format("{} is not a valid flight record: line {}: {}.", source_, line_, why));
  }

  std::string_view next() {
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(rest_.size(), end + 1));
    ++line_;
    return line;
  }

  void read_line(const std::vector<std::string_view>& words) {
    if (seen_keys_.contains("end")) fail("a line follows the line 'end'");
    if (words[0] == "#") return;
    if (words[0] == "collective" && words.size() == kEntryFields) {
      add_entry(words);
    } else if (words[0] == "meeting" && words.size() == kRendezvousFields) {
      add_rendezvous(words);
    } else if (words[0] == "model" && words.size() == kModelCodeFields) {
      add_model_code(words);
    } else if (words.size() == 2) {
      set(words[0], words[1]);
    } else {
      fail("unknown kind of line, or wrong number of fields");
    }
  }

  template <typename Number>
  Number number(std::string_view text, Number least, Number most, int base = 10) const {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
      fail(fmt::format("expected a number from {} to {}", least, most));
    return value;
  }

  double time(std::string_view text) const {
    if (text == "-") return -1;
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0)
      fail("expected a time in seconds, or '-'");
    return value;
  }

  std::string utc(std::string_view text) const {
    constexpr std::string_view kForm = "0000-00-00T00:00:00Z";
    const auto fits = [](char letter, char form) {
      return form == '0' ? letter >= '0' && letter <= '9' : letter == form;
    };
    if (!std::ranges::equal(text, kForm, fits)) fail("expected a date and time in UTC, such as 2026-11-22T03:00:12Z");
    return std::string(text);
  }

  void set(std::string_view name, std::string_view value) {
    if (name == "group") return add_group(value);
    if (name == "group-name") return name_group(value);
    if (!seen_keys_.insert(name).second) fail(fmt::format("the line '{}' may appear only once", name));
    if (name == "run") {
      record_.run = replace_control_characters(value);
    } else if (name == "rank") {
      record_.rank = number(value, 0, kMaxRanks - 1);
    } else if (name == "ranks") {
      record_.rank_count = number(value, record_.rank + 1, kMaxRanks);
    } else if (name == "why") {
      record_.why = replace_control_characters(value);
    } else if (name == "place") {
      record_.place = replace_control_characters(value);
    } else if (name == "written") {
      record_.written = time(value);
    } else if (name == "utc") {
      record_.written_utc = utc(value);
    } else if (name == "mesh") {
      set_mesh(value);
    } else if (name == "coordinates") {
      set_coordinates(value);
    } else if (name == "end") {
      const std::size_t count = record_.entries.size() + record_.rendezvous.size();
      if (number<std::size_t>(value, 0, SIZE_MAX) != count)
        fail(fmt::format("the line 'end' does not state the number of collectives and rendezvous, {}", count));
      record_.complete = true;
    } else {
      fail("unknown kind of line");
    }
    if (seen_keys_.contains("ranks") && !seen_keys_.contains("rank"))
      fail("the line 'rank' must precede the line 'ranks'");
  }

  void require_keys() const {
    for (const std::string_view name : {"run", "rank", "ranks"}) {
      if (!seen_keys_.contains(name)) fail(fmt::format("the line '{}' is missing", name));
    }
  }

  /// Parses "pipeline=2 replica=1 shard=4 tensor=1".
  std::array<int, 4> dimensions(std::string_view text, int least) const {
    const auto words = split_fields(text, ' ');
    std::array<int, 4> numbers{};
    if (words.size() != numbers.size())
      fail("expected the four dimensions of a mesh, such as pipeline=2 replica=1 shard=4 tensor=1");
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::string name = fmt::format("{}=", FlightMesh::kDimensions[i]);
      if (!words[i].starts_with(name)) fail(fmt::format("expected '{}' followed by a number", name));
      numbers[i] = number(words[i].substr(name.size()), least, kMaxRanks);
    }
    return numbers;
  }

  void set_mesh(std::string_view value) {
    if (!seen_keys_.contains("ranks")) fail("the line 'ranks' must precede the line 'mesh'");
    record_.mesh.emplace().counts = dimensions(value, 1);
    int64_t ranks = 1;
    for (const int count : record_.mesh->counts) ranks = std::min<int64_t>(ranks * count, kMaxRanks + 1);
    if (ranks != record_.rank_count)
      fail(fmt::format("the mesh must have {} ranks, as in the line 'ranks'", record_.rank_count));
  }

  void set_coordinates(std::string_view value) {
    if (!record_.mesh) fail("the line 'mesh' must precede the line 'coordinates'");
    FlightMesh& mesh = *record_.mesh;
    mesh.coordinates = dimensions(value, 0);
    int64_t rank = 0;
    for (std::size_t i = 0; i < mesh.counts.size(); ++i) rank = rank * mesh.counts[i] + mesh.coordinates[i];
    if (rank != record_.rank) fail("the coordinates are not those of the rank in the line 'rank'");
  }

  void add_group(std::string_view value) {
    if (!seen_keys_.contains("ranks")) fail("the line 'ranks' must precede each line 'group'");
    if (record_.groups.size() == kMaxGroups) fail(fmt::format("more than {} groups", kMaxGroups));
    record_.group_names.emplace_back();
    std::vector<int>& members = record_.groups.emplace_back();
    for (const std::string_view member : split_fields(value, ' '))
      members.push_back(number(member, 0, record_.rank_count - 1));
    std::vector<int> sorted = members;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) fail("the group contains a rank twice");
    if (!std::ranges::binary_search(sorted, record_.rank)) fail("the group does not contain the rank of this record");
  }

  void name_group(std::string_view value) {
    if (record_.groups.empty() || !record_.group_names.back().empty())
      fail("the line 'group-name' must follow a line 'group'");
    record_.group_names.back() = replace_control_characters(value);
  }

  Lane lane(std::string_view text) const {
    for (int i = 0; i < kLaneCount; ++i) {
      if (name(static_cast<Lane>(i)) == text) return static_cast<Lane>(i);
    }
    fail("unknown lane");
  }

  void add_entry(std::span<const std::string_view> words) {
    if (record_.entries.size() == kMaxFlightEntries) fail(fmt::format("more than {} collectives", kMaxFlightEntries));
    const uint64_t before = record_.entries.empty() ? 0 : record_.entries.back().number;
    FlightEntry& entry = record_.entries.emplace_back();
    entry.number = number<uint64_t>(words[1], 1, UINT64_MAX);
    if (entry.number <= before) fail("the numbers of collectives must increase");
    entry.group = number(words[2], 0, static_cast<int>(record_.groups.size()) - 1);
    entry.lane = lane(words[3]);
    entry.sequence = number<uint64_t>(words[4], 1, UINT64_MAX);
    entry.what = OperationDescription::unpack(number<uint64_t>(words[6], 0, UINT64_MAX, 16));
    if (words[5] != entry.what.text())
      fail("the name of the operation and its encoding differ, so the record is damaged");
    entry.unit = replace_control_characters(words[7]);
    entry.step = number<int64_t>(words[8], -1, INT64_MAX);
    entry.issued = time(words[9]);
    entry.begun = time(words[10]);
    entry.ended = time(words[11]);
  }

  void add_rendezvous(std::span<const std::string_view> words) {
    if (record_.rendezvous.size() == kMaxFlightRendezvous)
      fail(fmt::format("more than {} rendezvous", kMaxFlightRendezvous));
    FlightEntry& rendezvous = record_.rendezvous.emplace_back();
    rendezvous.is_rendezvous = true;
    rendezvous.number = number<uint64_t>(words[1], 0, UINT64_MAX);
    rendezvous.group = number(words[2], 0, static_cast<int>(record_.groups.size()) - 1);
    rendezvous.sequence = number<uint64_t>(words[3], 1, UINT64_MAX);
    rendezvous.unit = replace_control_characters(words[4]);
    rendezvous.step = number<int64_t>(words[5], -1, INT64_MAX);
    rendezvous.issued = rendezvous.begun = time(words[6]);
    rendezvous.ended = time(words[7]);
  }

  void add_model_code(std::span<const std::string_view> words) {
    if (record_.model_code.size() == kMaxFlightModelCode)
      fail(fmt::format("more than {} executions of model code", kMaxFlightModelCode));
    record_.model_code.push_back({.what = replace_control_characters(words[1]),
                                  .micro_batch = number<int32_t>(words[2], 0, INT32_MAX),
                                  .step = number<int64_t>(words[3], -1, INT64_MAX),
                                  .begun = time(words[4]),
                                  .ended = time(words[5])});
  }

  std::string_view rest_, source_;
  int line_ = 0;
  std::set<std::string_view> seen_keys_;  // first fields of the lines that may appear only once
  FlightRecord record_;
};

}  // namespace

FlightRecord parse_flight(std::string_view text, std::string_view source) { return Reader(text, source).read(); }

}  // namespace aliquot
