#include "apps/explain/explain.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>

#include "apps/explain/evidence.h"
#include "apps/explain/findings.h"
#include "apps/ranks_text.h"

namespace aliquot {
namespace {

/// Records keep 8 bits of an operation's mark, and the unit by its name.
bool same(const FlightEntry& a, const FlightEntry& b) { return a.what.packed() == b.what.packed() && a.unit == b.unit; }

std::string difference(const FlightEntry& a, const FlightEntry& b) {
  if (a.is_rendezvous) return "another purpose";
  if (a.what.kind != b.what.kind) return "another operation";
  if (a.what.count != b.what.count) return "another count";
  if (a.what.dtype != b.what.dtype) return "another type of number";
  return a.unit != b.unit ? "another unit" : "another place in its buffers";
}

/// The ranks in groups of those that came with the same.
std::vector<std::vector<int>> group_by_operation(const CollectiveRecord& collective) {
  std::vector<std::vector<int>> camps;
  for (const auto& [rank, entry] : collective.by_rank) {
    const auto alike = [&, mine = entry](const auto& camp) {
      return same(*collective.by_rank.at(camp.front()), *mine);
    };
    const auto found = std::ranges::find_if(camps, alike);
    (found != camps.end() ? *found : camps.emplace_back()).push_back(rank);
  }
  std::ranges::stable_sort(camps, [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return camps;
}

/// The first collective, in the order of the rank that came first, to which ranks came with different operations.
std::string mismatch_text(const Evidence& evidence) {
  const CollectiveRecord* first = nullptr;
  const auto place = [](const CollectiveRecord& collective) { return collective.by_rank.begin()->second->number; };
  for (const CollectiveRecord& collective : evidence.collectives) {
    if (group_by_operation(collective).size() < 2) continue;
    if (first == nullptr || place(collective) < place(*first)) first = &collective;
  }
  if (first == nullptr) return {};
  const auto camps = group_by_operation(*first);
  const FlightEntry& usual = *first->by_rank.at(camps[0].front());
  std::string text = fmt::format("Ranks went apart at {}: {} came with {}", collective_text(*first),
                                 ranks_text(camps[0]), operation_text(usual));
  for (size_t i = 1; i < camps.size(); ++i) {
    const FlightEntry& other = *first->by_rank.at(camps[i].front());
    text += fmt::format(", {} with {}: {}", ranks_text(camps[i]), operation_text(other), difference(usual, other));
  }
  return text + ".\n";
}

std::string last_collective_text(const Evidence& evidence, const FlightRecord& record) {
  const FlightEntry* last = nullptr;
  for (const FlightEntry& entry : record.entries) {
    if (evidence.has_reached(entry)) last = &entry;
  }
  if (last == nullptr) return {};
  return fmt::format("  last {} {}, #{} of the {} lane, {:.1f} s before this{}\n", evidence.timed ? "began" : "issued",
                     operation_text(*last), last->sequence, name(last->lane),
                     record.written - (evidence.timed ? last->begun : last->issued),
                     evidence.timed && last->ended < 0 ? ", and had not ended it" : "");
}

/// When the records were written, by the clocks of their nodes; nothing where none says it.
std::string write_time_text(const Evidence& evidence) {
  std::set<std::string> times;
  for (const FlightRecord& record : evidence.records) {
    if (!record.written_utc.empty()) times.insert(record.written_utc);
  }
  if (times.empty()) return {};
  if (times.size() == 1) return ", at " + date_text(*times.begin());
  return fmt::format(", from {} to {}", date_text(*times.begin()), date_text(*times.rbegin()));
}

std::string record_count_text(const Evidence& evidence) {
  const int rank_count = evidence.records.front().rank_count;
  std::vector<int> none;
  for (int rank = 0; rank < rank_count; ++rank) {
    if (!evidence.has(rank)) none.push_back(rank);
  }
  return fmt::format("{} of {} ranks left a record{}{}.\n", evidence.records.size(), rank_count,
                     write_time_text(evidence), none.empty() ? "" : fmt::format("; {} left none", ranks_text(none)));
}

std::string truncated_records_text(const Evidence& evidence) {
  std::vector<int> cut;
  for (const FlightRecord& record : evidence.records) {
    if (!record.complete) cut.push_back(record.rank);
  }
  if (cut.empty()) return {};
  const bool one = cut.size() == 1;
  return fmt::format("The record{} of {} {} cut short: what {} may have come.\n", one ? "" : "s", ranks_text(cut),
                     one ? "is" : "are", one ? "it lacks" : "they lack");
}

/// What it was in on the host, however many threads of it.
std::string host_waits_text(const FlightRecord& record) {
  std::string text;
  for (const FlightEntry& meeting : record.rendezvous) {
    if (meeting.ended >= 0) continue;
    text += fmt::format("  was in meeting #{}{}, for {:.1f} s\n", meeting.sequence,
                        label_text(meeting.unit, meeting.step), waited_seconds(meeting, record));
  }
  return text;
}

/// `said`: whose sentence it repeats, or itself.
std::string line_of(const Evidence& evidence, const FlightRecord& record, int said) {
  const std::string why = record.why.empty() ? "says nothing" : record.why;
  std::string text = fmt::format("\nrank {}: {}\n", record.rank,
                                 said == record.rank ? why : fmt::format("says what rank {} says", said));
  if (!record.place.empty()) text += fmt::format("  was at {}\n", record.place);
  return text + (record.complete ? last_collective_text(evidence, record) : "") + host_waits_text(record);
}

}  // namespace

std::string date_text(std::string utc) {
  std::ranges::replace(utc, 'T', ' ');
  return utc.substr(0, utc.size() - 1) + " UTC";
}

std::string explain(std::vector<FlightRecord> records) {
  const Evidence evidence(std::move(records));
  std::string text = record_count_text(evidence) + truncated_records_text(evidence);
  if (evidence.ended_by_launcher)
    text +=
        "The launcher told all of them to end, and none says that it failed: another rank died, or somebody stopped "
        "the job.\n";
  std::string found = mismatch_text(evidence);
  if (found.empty()) found = missing_ranks_text(evidence);
  found += late_ranks_text(evidence);
  text += found.empty() ? "All that is recorded went alike on all of them: what each said is below.\n" : found;
  std::map<std::string, int> said;
  for (const FlightRecord& record : evidence.records)
    text += line_of(evidence, record, said.try_emplace(record.why, record.rank).first->second);
  return text;
}

}  // namespace aliquot
