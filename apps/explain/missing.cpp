#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <set>

#include "apps/explain/findings.h"
#include "apps/ranks_text.h"

namespace aliquot {
namespace {

/// The last operation that the rank reached before `missed`, in the same lane and group. Null if there is none.
const FlightEntry* last_before(const Evidence& evidence, const CollectiveRecord& missed, int rank) {
  const FlightEntry* last = nullptr;
  for (const CollectiveRecord& collective : evidence.collectives) {
    const auto found = collective.by_rank.find(rank);
    if (!in_same_order(collective, missed) || found == collective.by_rank.end()) continue;
    if (evidence.has_reached(*found->second) && collective.sequence < missed.sequence) last = found->second;
  }
  return last;
}

std::string missing_rank_text(const Evidence& evidence, const PendingCollective& wait, int rank) {
  const FlightRecord& record = evidence.of(rank);
  std::string text = "  " + evidence.rank_text(rank) + " ";
  const FlightEntry* last = last_before(evidence, *wait.collective, rank);
  text += last == nullptr ? "had reached no earlier one"
                          : fmt::format("had last reached #{}, {}", last->sequence, operation_text(*last));
  if (last != nullptr && last->ended >= 0)
    text += fmt::format(", which it finished {:.1f} s before it gave up", record.written - last->ended);
  if (!record.place.empty()) text += fmt::format("; its training thread was at {}", record.place);
  return text + ".\n";
}

std::string missing_records_text(const Evidence& evidence, const std::vector<int>& ranks) {
  if (ranks.empty()) return {};
  const bool one = ranks.size() == 1;
  return fmt::format("  {} left no record: {} killed, {} failed, or {} in another directory.\n",
                     one ? evidence.rank_text(ranks.front()) : ranks_text(ranks), one ? "it was" : "they were",
                     one ? "its node" : "their nodes", one ? "its file is" : "their files are");
}

/// "collective #13 of the reduce lane, reduce-scatter of 256 float32 (h.1, step 3)", "rendezvous #7 (save, step 20)".
std::string where(const PendingCollective& wait) {
  const FlightEntry& entry = *wait.collective->by_rank.at(wait.waiting.front());
  const std::string place = collective_text(*wait.collective);
  return entry.is_rendezvous ? place + label_text(entry.unit, entry.step) : place + ", " + operation_text(entry);
}

std::string never_arrived_text(const Evidence& evidence, const PendingCollective& wait, const std::vector<int>& ranks) {
  const bool timed = evidence.is_timed(*wait.collective);
  std::string text = fmt::format("{} never reached {}, {} {} {}.\n", ranks_text(ranks), where(wait),
                                 timed ? "where" : "which", ranks_text(wait.waiting), timed ? "waited" : "had issued");
  text.front() = 'R';
  std::vector<int> without_records;
  for (const int rank : ranks) {
    if (evidence.has(rank)) {
      text += missing_rank_text(evidence, wait, rank);
    } else {
      without_records.push_back(rank);
    }
  }
  return text + missing_records_text(evidence, without_records);
}

std::string late_arrival_text(const PendingCollective& wait) {
  std::string text = fmt::format("{} reached {} after {} had given up.\n", ranks_text(wait.late), where(wait),
                                 ranks_text(wait.waiting));
  text.front() = 'R';
  return text;
}

/// The missing ranks of `wait` that do not wait in another collective or rendezvous. All other ranks wait for these,
/// directly or indirectly. For a rendezvous, waits in collectives do not count: another thread of the rank may enter
/// the rendezvous while the training thread waits in a collective.
std::vector<int> root_causes(const std::vector<PendingCollective>& waits, const PendingCollective& wait) {
  std::set<int> waiting;
  for (const PendingCollective& each : waits) {
    if (each.collective->is_rendezvous || !wait.collective->is_rendezvous)
      waiting.insert(each.waiting.begin(), each.waiting.end());
  }
  std::vector<int> roots;
  std::ranges::copy_if(wait.missing, std::back_inserter(roots), [&](int rank) { return !waiting.contains(rank); });
  return roots;
}

/// Without times, the records do not show all waits, so ranks without a record are reported first. If the launcher
/// ended all other ranks, only ranks without a record are reported.
std::string never_arrived_text(const Evidence& evidence, const std::vector<PendingCollective>& waits) {
  const auto has_no_record = [&](int rank) { return !evidence.has(rank); };
  for (const bool require_no_record : {true, false}) {
    if (require_no_record ? evidence.timed && !evidence.ended_by_launcher : evidence.ended_by_launcher) continue;
    for (const PendingCollective& wait : waits) {
      std::vector<int> roots = root_causes(waits, wait);
      if (evidence.ended_by_launcher) std::erase_if(roots, [&](int rank) { return !has_no_record(rank); });
      if (require_no_record ? std::ranges::any_of(roots, has_no_record) : !roots.empty())
        return never_arrived_text(evidence, wait, roots);
    }
  }
  return {};
}

/// Reports the first wait of at least kLongSeconds, but names no rank as the cause. A job that was stopped may have
/// hung, or it may only have been slow.
std::string long_waits_text(const Evidence& evidence, const std::vector<PendingCollective>& waits) {
  constexpr double kLongSeconds = 5;
  for (const PendingCollective& wait : waits) {
    const std::vector<int> roots = root_causes(waits, wait);
    if (roots.empty() || !evidence.is_timed(*wait.collective)) continue;
    double seconds = 0;
    for (const int rank : wait.waiting)
      seconds = std::max(seconds, waited_seconds(*wait.collective->by_rank.at(rank), evidence.of(rank)));
    if (seconds < kLongSeconds) continue;
    std::string text = fmt::format("{} had waited {:.1f} s in {}, which {} had not reached.\n",
                                   ranks_text(wait.waiting), seconds, where(wait), ranks_text(roots));
    text.front() = 'R';
    return text;
  }
  return {};
}

}  // namespace

std::string missing_ranks_text(const Evidence& evidence) {
  const std::vector<PendingCollective> waits = find_pending_collectives(evidence);
  if (waits.empty()) return {};
  if (std::string text = never_arrived_text(evidence, waits); !text.empty()) return text;
  if (evidence.ended_by_launcher) return long_waits_text(evidence, waits);
  for (const PendingCollective& wait : waits) {
    if (wait.missing.empty()) return late_arrival_text(wait);
  }
  std::string text = "Deadlock: the ranks wait for one another.\n";
  for (const PendingCollective& wait : waits)
    text +=
        fmt::format("  {} in {}, waiting for {}.\n", ranks_text(wait.waiting), where(wait), ranks_text(wait.missing));
  return text;
}

}  // namespace aliquot
