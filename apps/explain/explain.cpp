#include "apps/explain/explain.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <set>

#include "apps/explain/crossings.h"
#include "apps/ranks_text.h"

namespace aliquot {
namespace {

/// Everything that is known of the run, by rank.
struct Evidence {
  std::vector<FlightRecord> records;
  std::map<int, const FlightRecord*> by_rank;
  std::vector<Crossing> crossings;

  const FlightRecord& of(int rank) const { return *by_rank.at(rank); }
  bool has(int rank) const { return by_rank.contains(rank); }
};

bool same(const FlightEntry& a, const FlightEntry& b) { return a.what.packed() == b.what.packed(); }

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

/// What somebody waits in, and for whom; late are those who came when the others had given up.
struct Wait {
  const Crossing* crossing = nullptr;
  std::vector<int> waiting, missing, late;
};

/// The first of each lane of each group that ranks have come to and not ended: what lies behind it was never meant to be
/// reached by those who gave up there. Missing are the members who have not come.
std::vector<Wait> waits_of(const Evidence& evidence) {
  std::vector<Wait> waits;
  const Crossing* stuck = nullptr;
  for (const Crossing& crossing : evidence.crossings) {
    if (stuck != nullptr && stuck->members == crossing.members && stuck->lane == crossing.lane) continue;
    Wait wait{&crossing, {}, {}, {}};
    for (const int member : crossing.members) {
      const auto found = crossing.by_rank.find(member);
      if (found == crossing.by_rank.end() || found->second->begun < 0) {
        wait.missing.push_back(member);
      } else if (found->second->ended < 0) {
        wait.waiting.push_back(member);
      } else {
        wait.late.push_back(member);
      }
    }
    if (wait.waiting.empty()) continue;
    stuck = &crossing;
    if (!wait.missing.empty() || !wait.late.empty()) waits.push_back(std::move(wait));
  }
  return waits;
}

/// The rank's last collective in that lane of that group before the one it is missing from.
const FlightEntry* last_before(const Evidence& evidence, const Crossing& missed, int rank) {
  const FlightEntry* last = nullptr;
  for (const Crossing& crossing : evidence.crossings) {
    const auto found = crossing.by_rank.find(rank);
    if (crossing.lane != missed.lane || crossing.members != missed.members || found == crossing.by_rank.end()) continue;
    if (found->second->begun >= 0 && crossing.sequence < missed.sequence) last = found->second;
  }
  return last;
}

std::string of_missing(const Evidence& evidence, const Wait& wait, int rank) {
  if (!evidence.has(rank))
    return fmt::format("  rank {} left no record: it was killed, or its node is gone, or its file is elsewhere.\n",
                       rank);
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

/// Who is missing and waits for nobody is the one that the others wait for in the end.
std::string missing_ranks(const Evidence& evidence) {
  const std::vector<Wait> waits = waits_of(evidence);
  std::set<int> waiting;
  for (const Wait& wait : waits) waiting.insert(wait.waiting.begin(), wait.waiting.end());
  for (const Wait& wait : waits) {
    std::vector<int> roots;
    std::ranges::copy_if(wait.missing, std::back_inserter(roots), [&](int rank) { return !waiting.contains(rank); });
    if (roots.empty()) continue;
    const FlightEntry& entry = *wait.crossing->by_rank.at(wait.waiting.front());
    std::string text = fmt::format("{} never came to collective #{} of the {} lane, {}, where {} waited.\n",
                                   ranks_text(roots), wait.crossing->sequence, name(wait.crossing->lane),
                                   operation_text(entry), ranks_text(wait.waiting));
    text.front() = 'R';
    for (const int rank : roots) text += of_missing(evidence, wait, rank);
    return text;
  }
  for (const Wait& wait : waits) {
    if (!wait.missing.empty()) continue;
    std::string text =
        fmt::format("{} came to collective #{} of the {} lane, {}, when {} had given up.\n", ranks_text(wait.late),
                    wait.crossing->sequence, name(wait.crossing->lane),
                    operation_text(*wait.crossing->by_rank.at(wait.late.front())), ranks_text(wait.waiting));
    text.front() = 'R';
    return text;
  }
  if (waits.empty()) return {};
  std::string text = "Ranks wait for one another in a circle:\n";
  for (const Wait& wait : waits) {
    text += fmt::format("  {} in #{} of the {} lane, {}, for {}.\n", ranks_text(wait.waiting), wait.crossing->sequence,
                        name(wait.crossing->lane), operation_text(*wait.crossing->by_rank.at(wait.waiting.front())),
                        ranks_text(wait.missing));
  }
  return text;
}

/// How much the others waited for a rank that came last, over all collectives that all came to.
struct Lateness {
  double seconds = 0, most_seconds = 0;
  int count = 0;
  const FlightEntry* most = nullptr;
};

void add_lateness(const Evidence& evidence, const Crossing& crossing, std::map<int, Lateness>& late) {
  if (crossing.members.size() < 2 || crossing.by_rank.size() < crossing.members.size()) return;
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

/// `said`: whose sentence it repeats, or itself.
std::string line_of(const FlightRecord& record, int said) {
  const std::string why = record.why.empty() ? "says nothing" : record.why;
  std::string text = fmt::format("\nrank {}: {}\n", record.rank,
                                 said == record.rank ? why : fmt::format("says what rank {} says", said));
  if (!record.place.empty()) text += fmt::format("  was at {}\n", record.place);
  const FlightEntry* last = nullptr;
  for (const FlightEntry& entry : record.entries) {
    if (entry.begun >= 0) last = &entry;
  }
  if (last == nullptr) return text;
  return text + fmt::format("  last began {}, #{} of the {} lane, {:.1f} s before this{}\n", operation_text(*last),
                            last->sequence, name(last->lane), record.written - last->begun,
                            last->ended < 0 ? ", and had not ended it" : "");
}

}  // namespace

std::string explain(std::vector<FlightRecord> records) {
  Evidence evidence;
  evidence.records = std::move(records);
  std::ranges::sort(evidence.records, {}, &FlightRecord::rank);
  for (const FlightRecord& record : evidence.records) evidence.by_rank[record.rank] = &record;
  evidence.crossings = crossings_of(evidence.records);
  const int rank_count = evidence.records.front().rank_count;
  std::string text = fmt::format("{} of {} ranks left a record.\n", evidence.records.size(), rank_count);
  std::string found = different_operations(evidence);
  if (found.empty()) found = missing_ranks(evidence);
  found += slow_ranks(evidence);
  text += found.empty() ? "All that is recorded went alike on all of them: what each said is below.\n" : found;
  std::map<std::string, int> said;
  for (const FlightRecord& record : evidence.records)
    text += line_of(record, said.try_emplace(record.why, record.rank).first->second);
  return text;
}

}  // namespace aliquot
