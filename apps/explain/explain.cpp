#include "apps/explain/explain.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>

#include "apps/explain/waits.h"
#include "apps/ranks_text.h"

namespace aliquot {
namespace {

/// Records keep 8 bits of an operation's mark, and the unit by its name.
bool same(const FlightEntry& a, const FlightEntry& b) { return a.what.packed() == b.what.packed() && a.unit == b.unit; }

std::string difference(const FlightEntry& a, const FlightEntry& b) {
  if (a.what.kind != b.what.kind) return "another operation";
  if (a.what.count != b.what.count) return "another count";
  if (a.what.dtype != b.what.dtype) return "another type of number";
  return a.unit != b.unit ? "another unit" : "another place in its buffers";
}

/// The ranks in groups of those that came with the same.
std::vector<std::vector<int>> camps_of(const Crossing& crossing) {
  std::vector<std::vector<int>> camps;
  for (const auto& [rank, entry] : crossing.by_rank) {
    const auto alike = [&, mine = entry](const auto& camp) { return same(*crossing.by_rank.at(camp.front()), *mine); };
    const auto found = std::ranges::find_if(camps, alike);
    (found != camps.end() ? *found : camps.emplace_back()).push_back(rank);
  }
  std::ranges::stable_sort(camps, [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return camps;
}

/// The first collective, in the order of the rank that came first, to which ranks came with different operations.
std::string different_operations(const Evidence& evidence) {
  const Crossing* first = nullptr;
  const auto place = [](const Crossing& crossing) { return crossing.by_rank.begin()->second->number; };
  for (const Crossing& crossing : evidence.crossings) {
    if (camps_of(crossing).size() < 2) continue;
    if (first == nullptr || place(crossing) < place(*first)) first = &crossing;
  }
  if (first == nullptr) return {};
  const auto camps = camps_of(*first);
  const FlightEntry& usual = *first->by_rank.at(camps[0].front());
  std::string text = fmt::format("Ranks went apart at collective #{} of the {} lane: {} came with {}", first->sequence,
                                 name(first->lane), ranks_text(camps[0]), operation_text(usual));
  for (size_t i = 1; i < camps.size(); ++i) {
    const FlightEntry& other = *first->by_rank.at(camps[i].front());
    text += fmt::format(", {} with {}: {}", ranks_text(camps[i]), operation_text(other), difference(usual, other));
  }
  return text + ".\n";
}

/// The rank's last collective in that lane of that group before the one it is missing from.
const FlightEntry* last_before(const Evidence& evidence, const Crossing& missed, int rank) {
  const FlightEntry* last = nullptr;
  for (const Crossing& crossing : evidence.crossings) {
    const auto found = crossing.by_rank.find(rank);
    if (crossing.lane != missed.lane || crossing.group != missed.group || found == crossing.by_rank.end()) continue;
    if (evidence.came_to(*found->second) && crossing.sequence < missed.sequence) last = found->second;
  }
  return last;
}

std::string of_missing(const Evidence& evidence, const UnendedCrossing& wait, int rank) {
  const FlightRecord& record = evidence.of(rank);
  std::string text = fmt::format("  rank {} ", rank);
  const FlightEntry* last = last_before(evidence, *wait.crossing, rank);
  text += last == nullptr ? "had come to none there before"
                          : fmt::format("had last come to #{} there, {}", last->sequence, operation_text(*last));
  if (last != nullptr && last->ended >= 0)
    text += fmt::format(", which it ended {:.1f} s before it gave up", record.written - last->ended);
  if (!record.place.empty()) text += fmt::format("; its own thread was at {}", record.place);
  return text + ".\n";
}

std::string of_ranks_without_records(const std::vector<int>& ranks) {
  if (ranks.empty()) return {};
  const bool one = ranks.size() == 1;
  return fmt::format("  {} left no record: {} killed, or {} gone, or {} elsewhere.\n", ranks_text(ranks),
                     one ? "it was" : "they were", one ? "its node is" : "their nodes are",
                     one ? "its file is" : "their files are");
}

/// "collective #13 of the reduce lane, reduce-scatter of 256 float32 (h.1, step 3)".
std::string where(const UnendedCrossing& wait) {
  return fmt::format("collective #{} of the {} lane, {}", wait.crossing->sequence, name(wait.crossing->lane),
                     operation_text(*wait.crossing->by_rank.at(wait.waiting.front())));
}

std::string never_came(const Evidence& evidence, const UnendedCrossing& wait, const std::vector<int>& ranks) {
  std::string text = fmt::format("{} never came to {}, {} {} {}.\n", ranks_text(ranks), where(wait),
                                 evidence.timed ? "where" : "which", ranks_text(wait.waiting),
                                 evidence.timed ? "waited" : "had issued");
  text.front() = 'R';
  std::vector<int> without_records;
  for (const int rank : ranks) {
    if (evidence.has(rank)) {
      text += of_missing(evidence, wait, rank);
    } else {
      without_records.push_back(rank);
    }
  }
  return text + of_ranks_without_records(without_records);
}

std::string came_late(const UnendedCrossing& wait) {
  std::string text = fmt::format("{} came to {}, when {} had given up.\n", ranks_text(wait.late), where(wait),
                                 ranks_text(wait.waiting));
  text.front() = 'R';
  return text;
}

/// Who is missing and waits for nobody is the one that the others wait for in the end. Without times a rank may wait unseen, and
/// who left no record comes first.
std::string never_came(const Evidence& evidence, const std::vector<UnendedCrossing>& waits) {
  std::set<int> waiting;
  for (const UnendedCrossing& wait : waits) waiting.insert(wait.waiting.begin(), wait.waiting.end());
  const auto is_gone = [&](int rank) { return !evidence.has(rank); };
  for (const bool gone_first : {true, false}) {
    if (gone_first && evidence.timed) continue;
    for (const UnendedCrossing& wait : waits) {
      std::vector<int> roots;
      std::ranges::copy_if(wait.missing, std::back_inserter(roots), [&](int rank) { return !waiting.contains(rank); });
      if (gone_first ? std::ranges::any_of(roots, is_gone) : !roots.empty()) return never_came(evidence, wait, roots);
    }
  }
  return {};
}

std::string missing_ranks(const Evidence& evidence) {
  const std::vector<UnendedCrossing> waits = waits_of(evidence);
  if (waits.empty()) return {};
  if (std::string text = never_came(evidence, waits); !text.empty()) return text;
  for (const UnendedCrossing& wait : waits) {
    if (wait.missing.empty()) return came_late(wait);
  }
  std::string text = "Ranks wait for one another in a circle:\n";
  for (const UnendedCrossing& wait : waits)
    text += fmt::format("  {} in {}, for {}.\n", ranks_text(wait.waiting), where(wait), ranks_text(wait.missing));
  return text;
}

/// How much the others waited for a rank that came last, over all collectives that all came to.
struct Lateness {
  double seconds = 0, most_seconds = 0;
  int count = 0;
  const FlightEntry* most = nullptr;
};

void add_lateness(const Evidence& evidence, const Crossing& crossing, std::map<int, Lateness>& late) {
  if (crossing.members->size() < 2 || crossing.by_rank.size() < crossing.members->size()) return;
  int last = -1;
  double least = 0, most = 0;
  for (const auto& [rank, entry] : crossing.by_rank) {
    const double waited = waited_seconds(*entry, evidence.of(rank));
    if (waited < 0) return;
    if (last < 0 || waited < least) least = waited, last = rank;
    most = std::max(most, waited);
  }
  Lateness& of_last = late[last];
  of_last.seconds += most - least;
  ++of_last.count;
  if (most - least < of_last.most_seconds) return;
  of_last.most_seconds = most - least;
  of_last.most = crossing.by_rank.at(last);
}

/// Collectives end for all at once, so who waited least came last: no two clocks are compared.
std::string slow_ranks(const Evidence& evidence) {
  constexpr double kPartThatMatters = 0.1, kSecondsThatMatter = 0.05;
  std::map<int, Lateness> late;
  for (const Crossing& crossing : evidence.crossings) add_lateness(evidence, crossing, late);
  double first = 0, last = 0;
  for (const FlightEntry& entry : evidence.records.front().entries) {
    if (entry.begun >= 0 && (first == 0 || entry.begun < first)) first = entry.begun;
    last = evidence.records.front().written;
  }
  int count = 0;
  for (const auto& [rank, of_rank] : late) count += of_rank.count;
  std::string text;
  for (const auto& [rank, of_rank] : late) {
    if (of_rank.seconds < std::max(kSecondsThatMatter, kPartThatMatters * (last - first))) continue;
    text += fmt::format(
        "Rank {} came last to {} of {} collectives, and the others waited {:.1f} s of {:.1f} s for it: "
        "most before {}, {:.1f} s.\n",
        rank, of_rank.count, count, of_rank.seconds, last - first, operation_text(*of_rank.most), of_rank.most_seconds);
  }
  return text;
}

std::string of_last_collective(const Evidence& evidence, const FlightRecord& record) {
  const FlightEntry* last = nullptr;
  for (const FlightEntry& entry : record.entries) {
    if (evidence.came_to(entry)) last = &entry;
  }
  if (last == nullptr) return {};
  return fmt::format("  last {} {}, #{} of the {} lane, {:.1f} s before this{}\n", evidence.timed ? "began" : "issued",
                     operation_text(*last), last->sequence, name(last->lane),
                     record.written - (evidence.timed ? last->begun : last->issued),
                     evidence.timed && last->ended < 0 ? ", and had not ended it" : "");
}

/// "2026-11-22T03:00:12Z", as people write it.
std::string date_text(std::string utc) {
  std::ranges::replace(utc, 'T', ' ');
  return utc.substr(0, utc.size() - 1) + " UTC";
}

/// When the records were written, by the clocks of their nodes; nothing where none says it.
std::string when_written(const Evidence& evidence) {
  std::set<std::string> times;
  for (const FlightRecord& record : evidence.records) {
    if (!record.written_utc.empty()) times.insert(record.written_utc);
  }
  if (times.empty()) return {};
  if (times.size() == 1) return ", at " + date_text(*times.begin());
  return fmt::format(", from {} to {}", date_text(*times.begin()), date_text(*times.rbegin()));
}

std::string who_left_records(const Evidence& evidence) {
  const int rank_count = evidence.records.front().rank_count;
  std::vector<int> none;
  for (int rank = 0; rank < rank_count; ++rank) {
    if (!evidence.has(rank)) none.push_back(rank);
  }
  return fmt::format("{} of {} ranks left a record{}{}.\n", evidence.records.size(), rank_count, when_written(evidence),
                     none.empty() ? "" : fmt::format("; {} left none", ranks_text(none)));
}

/// `said`: whose sentence it repeats, or itself.
std::string line_of(const Evidence& evidence, const FlightRecord& record, int said) {
  const std::string why = record.why.empty() ? "says nothing" : record.why;
  std::string text = fmt::format("\nrank {}: {}\n", record.rank,
                                 said == record.rank ? why : fmt::format("says what rank {} says", said));
  if (!record.place.empty()) text += fmt::format("  was at {}\n", record.place);
  return text + of_last_collective(evidence, record);
}

}  // namespace

std::string explain(std::vector<FlightRecord> records) {
  const Evidence evidence(std::move(records));
  std::string text = who_left_records(evidence);
  std::string found = different_operations(evidence);
  if (found.empty()) found = missing_ranks(evidence);
  found += slow_ranks(evidence);
  text += found.empty() ? "All that is recorded went alike on all of them: what each said is below.\n" : found;
  std::map<std::string, int> said;
  for (const FlightRecord& record : evidence.records)
    text += line_of(evidence, record, said.try_emplace(record.why, record.rank).first->second);
  return text;
}

}  // namespace aliquot
