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

/// Whether `a` and `b` record the same operation. Compares the names of the units too, because a record keeps only 8
/// bits of an operation's fingerprint. These bits may be equal for two units.
bool same(const FlightEntry& a, const FlightEntry& b) { return a.what.packed() == b.what.packed() && a.unit == b.unit; }

std::string difference(const FlightEntry& a, const FlightEntry& b) {
  if (a.is_rendezvous) return "different purpose";
  if (a.what.kind != b.what.kind) return "different operation";
  if (a.what.count != b.what.count) return "different count";
  if (a.what.dtype != b.what.dtype) return "different data type";
  return a.unit != b.unit ? "different unit" : "different arguments";
}

/// Partitions the ranks by the operation that they issued. The largest part comes first.
std::vector<std::vector<int>> group_by_operation(const CollectiveRecord& collective) {
  std::vector<std::vector<int>> parts;
  for (const auto& [rank, entry] : collective.by_rank) {
    const auto issued_the_same = [&, mine = entry](const auto& part) {
      return same(*collective.by_rank.at(part.front()), *mine);
    };
    const auto found = std::ranges::find_if(parts, issued_the_same);
    (found != parts.end() ? *found : parts.emplace_back()).push_back(rank);
  }
  std::ranges::stable_sort(parts, [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return parts;
}

/// Describes the first collective for which ranks issued different operations. The first collective is the one with the
/// lowest issue number on the lowest rank that recorded it.
std::string mismatch_text(const Evidence& evidence) {
  const CollectiveRecord* first = nullptr;
  const auto place = [](const CollectiveRecord& collective) { return collective.by_rank.begin()->second->number; };
  for (const CollectiveRecord& collective : evidence.collectives) {
    if (group_by_operation(collective).size() < 2) continue;
    if (first == nullptr || place(collective) < place(*first)) first = &collective;
  }
  if (first == nullptr) return {};
  const auto parts = group_by_operation(*first);
  const FlightEntry& usual = *first->by_rank.at(parts[0].front());
  std::string text = fmt::format("Ranks disagree at {}: {} issued {}", collective_text(*first), ranks_text(parts[0]),
                                 operation_text(usual));
  for (size_t i = 1; i < parts.size(); ++i) {
    const FlightEntry& other = *first->by_rank.at(parts[i].front());
    text += fmt::format(", {} issued {}: {}", ranks_text(parts[i]), operation_text(other), difference(usual, other));
  }
  return text + ".\n";
}

std::string last_collective_text(const Evidence& evidence, const FlightRecord& record) {
  const FlightEntry* last = nullptr;
  for (const FlightEntry& entry : record.entries) {
    if (evidence.has_reached(entry)) last = &entry;
  }
  if (last == nullptr) return {};
  return fmt::format("  last {} {}, #{} of the {} lane{}, {:.1f} s before this record was written{}\n",
                     evidence.timed ? "started" : "issued", operation_text(*last), last->sequence, name(last->lane),
                     group_name_text(name_of_group(record, last->group)),
                     record.written - (evidence.timed ? last->begun : last->issued),
                     evidence.timed && last->ended < 0 ? ", and had not finished it" : "");
}

/// Returns ", at DATE" or ", from DATE to DATE", by the clocks of the nodes, or "" if no record has a date.
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
  return fmt::format("{} of {} ranks wrote a flight record{}{}.\n", evidence.records.size(), rank_count,
                     write_time_text(evidence), none.empty() ? "" : fmt::format("; {} wrote none", ranks_text(none)));
}

std::string truncated_records_text(const Evidence& evidence) {
  std::vector<int> cut;
  for (const FlightRecord& record : evidence.records) {
    if (!record.complete) cut.push_back(record.rank);
  }
  if (cut.empty()) return {};
  const bool one = cut.size() == 1;
  return fmt::format("The record{} of {} {} truncated: collectives that {} are not counted as missed.\n",
                     one ? "" : "s", ranks_text(cut), one ? "is" : "are", one ? "it lacks" : "they lack");
}

/// A line for each rendezvous in which a thread of the rank was waiting.
std::string host_waits_text(const FlightRecord& record) {
  std::string text;
  for (const FlightEntry& entry : record.rendezvous) {
    if (entry.ended >= 0) continue;
    text += fmt::format("  was waiting in rendezvous #{}{} for {:.1f} s\n", entry.sequence,
                        label_text(entry.unit, entry.step), waited_seconds(entry, record));
  }
  return text;
}

/// The lines about one rank. `said` is the lowest rank with the same message, which may be this rank.
std::string line_of(const Evidence& evidence, const FlightRecord& record, int said) {
  const std::string why = record.why.empty() ? "no message" : record.why;
  const std::string coordinates = evidence.coordinates_text(record.rank);
  std::string text =
      fmt::format("\nrank {}{}: {}\n", record.rank, coordinates.empty() ? "" : fmt::format(" ({})", coordinates),
                  said == record.rank ? why : fmt::format("same message as rank {}", said));
  if (!record.place.empty()) text += fmt::format("  training thread was at {}\n", record.place);
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
        "The launcher ended all of these ranks, and none of them recorded a failure: another rank died, or "
        "the job was stopped.\n";
  std::string found = mismatch_text(evidence);
  if (found.empty()) {
    const MissingRanks missing = find_missing_ranks(evidence);
    found = missing.text + pipeline_text(evidence, missing.causes);
  }
  found += late_ranks_text(evidence);
  text += found.empty()
              ? "The records show no mismatch, no missing rank and no straggler. Each rank's message follows.\n"
              : found;
  std::map<std::string, int> said;
  for (const FlightRecord& record : evidence.records)
    text += line_of(evidence, record, said.try_emplace(record.why, record.rank).first->second);
  return text;
}

}  // namespace aliquot
