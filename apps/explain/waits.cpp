#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "apps/explain/findings.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {
namespace {

/// Moves ranks from `waiting` to `late` if they waited less than half as long as the rank that waited longest. After
/// some ranks have given up a rendezvous, it never completes on any rank. The same holds for some collectives between
/// nodes. In these cases only a short wait shows that a rank arrived late.
void find_late(const Evidence& evidence, PendingCollective& wait) {
  const auto waited = [&](int rank) { return waited_seconds(*wait.collective->by_rank.at(rank), evidence.of(rank)); };
  double most = 0;
  for (const int rank : wait.waiting) most = std::max(most, waited(rank));
  const auto is_late = [&](int rank) { return waited(rank) < most / 2; };
  std::ranges::copy_if(wait.waiting, std::back_inserter(wait.late), is_late);
  std::erase_if(wait.waiting, is_late);
}

/// Whether all ranks entered the collective and none finished it, because a rank reached its deadline. If a rank
/// failed itself, or the launcher ended the ranks, they may have been in the middle of the collective.
bool all_gave_up(const Evidence& evidence, const PendingCollective& wait) {
  if (!wait.missing.empty() || !wait.late.empty() || evidence.ended_by_launcher) return false;
  return std::ranges::none_of(evidence.records,
                              [&](const FlightRecord& record) { return evidence.failed_itself(record.rank); });
}

/// Finds the waits in a collective from the start and end times that each rank recorded.
PendingCollective wait_by_times(const Evidence& evidence, const CollectiveRecord& collective) {
  PendingCollective wait{&collective, {}, {}, {}};
  for (const int member : *collective.members) {
    const auto found = collective.by_rank.find(member);
    if (found == collective.by_rank.end() && evidence.is_truncated(member)) continue;
    if (found == collective.by_rank.end() || found->second->begun < 0) {
      wait.missing.push_back(member);
    } else {
      (found->second->ended < 0 ? wait.waiting : wait.late).push_back(member);
    }
  }
  if (collective.is_rendezvous ? wait.late.empty() : all_gave_up(evidence, wait)) find_late(evidence, wait);
  return wait;
}

/// Finds waits in records without times, from the order in which each rank issued collectives.
class IssueOrder {
 public:
  explicit IssueOrder(const Evidence& evidence) : evidence_(evidence) {
    for (const CollectiveRecord& collective : evidence.collectives) {
      if (collective.is_rendezvous) continue;
      for (const auto& [rank, entry] : collective.by_rank)
        last_[{rank, collective.group, collective.lane}] = collective.sequence;
    }
  }

  PendingCollective wait(const CollectiveRecord& collective) const {
    PendingCollective wait{&collective, {}, {}, {}};
    for (const int member : *collective.members) {
      if (!collective.by_rank.contains(member) && never_issued(collective, member)) wait.missing.push_back(member);
    }
    if (wait.missing.empty()) return wait;
    for (const int member : *collective.members) {
      if (collective.by_rank.contains(member)) wait.waiting.push_back(member);
    }
    return wait;
  }

 private:
  /// Whether a member whose record lacks the collective certainly did not issue it. A record has only the last 256
  /// entries, so the entry of an older collective may have been overwritten.
  bool never_issued(const CollectiveRecord& collective, int member) const {
    if (!evidence_.has(member)) return is_last_of_a_rank(collective);
    if (evidence_.is_truncated(member)) return false;
    const auto last = last_.find({member, collective.group, collective.lane});
    return last != last_.end() ? last->second < collective.sequence : reaches_back_before(collective, member);
  }

  /// Whether the member's record begins before this collective. All ranks issue collectives in the same order. The
  /// record therefore begins earlier if it contains a collective that another rank issued before this one.
  bool reaches_back_before(const CollectiveRecord& collective, int member) const {
    const auto& entries = evidence_.of(member).entries;
    if (entries.empty() || entries.front().number == 1) return true;  // nothing has been overwritten
    const auto& [other, here] = *collective.by_rank.begin();
    return std::ranges::any_of(evidence_.collectives, [&, other = other, here = here](const CollectiveRecord& before) {
      if (before.is_rendezvous) return false;  // the order of rendezvous may differ between ranks
      const auto found = before.by_rank.find(other);
      return found != before.by_rank.end() && found->second->number < here->number && before.by_rank.contains(member);
    });
  }

  bool is_last_of_a_rank(const CollectiveRecord& collective) const {
    return std::ranges::any_of(collective.by_rank, [this](const auto& noted) {
      return !evidence_.is_truncated(noted.first) && noted.second == &evidence_.of(noted.first).entries.back();
    });
  }

  const Evidence& evidence_;
  // The sequence number of the last collective that each rank issued in each group and lane.
  std::map<std::tuple<int, int, Lane>, uint64_t> last_;
};

/// Whether this rendezvous is a cause of the failure: a rank's message names it, or a missing rank left no record.
/// After another failure, threads that save may still wait for one another in a rendezvous, which is not a cause.
bool is_cause(const Evidence& evidence, const PendingCollective& wait) {
  const auto& [rank, entry] = *wait.collective->by_rank.begin();
  const std::string waited_text = bootstrap_wait_text(entry->unit);
  const auto names_it = [&](const FlightRecord& record) { return record.why.find(waited_text) != std::string::npos; };
  return std::ranges::any_of(evidence.records, names_it) ||
         std::ranges::any_of(wait.missing, [&](int member) { return !evidence.has(member); });
}

/// The key by which find_pending_collectives() sorts its result: rendezvous first, then by issue number. The result has
/// only rendezvous that may be a cause of the failure.
std::pair<bool, uint64_t> place(const PendingCollective& wait) {
  return {!wait.collective->is_rendezvous, wait.collective->by_rank.begin()->second->number};
}

}  // namespace

std::vector<PendingCollective> find_pending_collectives(const Evidence& evidence) {
  const IssueOrder order(evidence);
  std::vector<PendingCollective> waits;
  const CollectiveRecord* stuck = nullptr;
  for (const CollectiveRecord& collective : evidence.collectives) {
    if (stuck != nullptr && in_same_order(*stuck, collective)) continue;
    PendingCollective wait =
        evidence.is_timed(collective) ? wait_by_times(evidence, collective) : order.wait(collective);
    if (wait.waiting.empty()) continue;
    stuck = &collective;
    if (collective.is_rendezvous && !evidence.ended_by_launcher && !is_cause(evidence, wait)) continue;
    if (!wait.missing.empty() || !wait.late.empty()) waits.push_back(std::move(wait));
  }
  std::ranges::stable_sort(waits, {}, place);
  return waits;
}

}  // namespace aliquot
