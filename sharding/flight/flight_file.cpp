#include "sharding/flight/flight_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <span>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::string_view kTitle = "aliquot flight record 2";
constexpr std::string_view kTitleWithoutEnd = "aliquot flight record 1";  // version 1 has no end line and no rendezvous
constexpr std::string_view kColumns =
    "#\tnumber\tgroup\tlane\tsequence\toperation\tpacked\tunit\tstep\tissued\tbegun\tended";
constexpr std::string_view kRendezvousColumns = "#\tafter\tgroup\tsequence\tpurpose\tstep\tbegun\tended";
constexpr int kMaxRanks = 1 << 20;
constexpr std::size_t kMaxGroups = 1 << 14;
constexpr std::size_t kEntryFields = 12, kRendezvousFields = 8;

std::string seconds(double value) { return value < 0 ? "-" : fmt::format("{:.6f}", value); }

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
    if (title != kTitle && title != kTitleWithoutEnd) fail(fmt::format("expected the title \"{}\"", kTitle));
    const std::size_t end_of_lines = rest_.rfind('\n') + 1;  // excludes an incomplete last line; 0 without a newline
    record_.complete = title == kTitleWithoutEnd && end_of_lines == rest_.size();
    rest_ = rest_.substr(0, end_of_lines);
    while (!rest_.empty()) read_line(split_fields(next(), '\t'));
    require_keys();
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
    if (seen_keys_.contains("end")) fail("unexpected line after the end line");
    if (words[0] == "#") return;
    if (words[0] == "collective" && words.size() == kEntryFields) {
      add_entry(words);
    } else if (words[0] == "meeting" && words.size() == kRendezvousFields) {
      add_rendezvous(words);
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
    } else if (name == "end") {
      const std::size_t count = record_.entries.size() + record_.rendezvous.size();
      if (number<std::size_t>(value, 0, SIZE_MAX) != count)
        fail(fmt::format("the end line does not match the {} collectives and rendezvous of the record", count));
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

  void add_group(std::string_view value) {
    if (!seen_keys_.contains("ranks")) fail("the line 'ranks' must precede all lines 'group'");
    if (record_.groups.size() == kMaxGroups) fail(fmt::format("more than {} groups", kMaxGroups));
    std::vector<int>& members = record_.groups.emplace_back();
    for (const std::string_view member : split_fields(value, ' '))
      members.push_back(number(member, 0, record_.rank_count - 1));
    std::vector<int> sorted = members;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) fail("the group contains a rank twice");
    if (!std::ranges::binary_search(sorted, record_.rank)) fail("the group does not contain the rank of this record");
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

  std::string_view rest_, source_;
  int line_ = 0;
  std::set<std::string_view> seen_keys_;  // first fields of the lines that may appear only once
  FlightRecord record_;
};

}  // namespace

// Terminals interpret the control characters of ASCII and also those of Latin-1, which are two bytes in UTF-8.
std::string replace_control_characters(std::string_view text) {
  std::string line(text);
  const auto byte = [&line](std::size_t at) { return static_cast<unsigned char>(line[at]); };
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (byte(i) < ' ' || byte(i) == 0x7F) line[i] = ' ';
    if (byte(i) != 0xC2 || i + 1 == line.size() || byte(i + 1) < 0x80 || byte(i + 1) > 0x9F) continue;
    line[i] = line[i + 1] = ' ';
  }
  return line;
}

std::string flight_text(const FlightRecord& record) {
  std::string text = fmt::format("{}\nrun\t{}\nrank\t{}\nranks\t{}\nwhy\t{}\nplace\t{}\nwritten\t{}\n", kTitle,
                                 replace_control_characters(record.run), record.rank, record.rank_count,
                                 replace_control_characters(record.why), replace_control_characters(record.place),
                                 seconds(record.written));
  if (!record.written_utc.empty()) text += fmt::format("utc\t{}\n", record.written_utc);
  for (const std::vector<int>& members : record.groups) text += fmt::format("group\t{}\n", fmt::join(members, " "));
  text += fmt::format("{}\n", kColumns);
  for (const FlightEntry& entry : record.entries) {
    text += fmt::format("collective\t{}\t{}\t{}\t{}\t{}\t{:016x}\t{}\t{}\t{}\t{}\t{}\n", entry.number, entry.group,
                        name(entry.lane), entry.sequence, entry.what.text(), entry.what.packed(),
                        replace_control_characters(entry.unit), entry.step, seconds(entry.issued), seconds(entry.begun),
                        seconds(entry.ended));
  }
  if (!record.rendezvous.empty()) text += fmt::format("{}\n", kRendezvousColumns);
  for (const FlightEntry& rendezvous : record.rendezvous) {
    text += fmt::format("meeting\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", rendezvous.number, rendezvous.group,
                        rendezvous.sequence, replace_control_characters(rendezvous.unit), rendezvous.step,
                        seconds(rendezvous.begun), seconds(rendezvous.ended));
  }
  if (record.complete) text += fmt::format("end\t{}\n", record.entries.size() + record.rendezvous.size());
  return text;
}

FlightRecord parse_flight(std::string_view text, std::string_view source) { return Reader(text, source).read(); }

}  // namespace aliquot
