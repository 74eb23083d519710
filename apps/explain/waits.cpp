#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "apps/explain/findings.h"
#include "sharding/comm/bootstrap_purpose.h"

namespace aliquot {
namespace {

/// Who comes to a meeting that was given up is turned away: it ends for nobody, and those that came late hardly waited.
void find_late(const Evidence& evidence, PendingCollective& wait) {
  const auto waited = [&](int rank) { return waited_seconds(*wait.collective->by_rank.at(rank), evidence.of(rank)); };
  double most = 0;
  for (const int rank : wait.waiting) most = std::max(most, waited(rank));
  const auto is_late = [&](int rank) { return waited(rank) < most / 2; };
  std::ranges::copy_if(wait.waiting, std::back_inserter(wait.late), is_late);
  std::erase_if(wait.waiting, is_late);
}

/// Where it was noted when ranks came and left.
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
  if (collective.is_rendezvous && wait.late.empty()) find_late(evidence, wait);
  return wait;
}

/// Where the order is known in which each rank issued, and nothing else.
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
  /// Of a member that has no note of it: it may have forgotten it since.
  bool never_issued(const CollectiveRecord& collective, int member) const {
    if (!evidence_.has(member)) return is_last_of_a_rank(collective);
    if (evidence_.is_truncated(member)) return false;
    const auto last = last_.find({member, collective.group, collective.lane});
    return last != last_.end() ? last->second < collective.sequence : remembers_before(collective, member);
  }

  /// Ranks issue in one order, so who remembers what another issued before this would remember this too.
  bool remembers_before(const CollectiveRecord& collective, int member) const {
    const auto& entries = evidence_.of(member).entries;
    if (entries.empty() || entries.front().number == 1) return true;  // it has forgotten nothing
    const auto& [other, here] = *collective.by_rank.begin();
    return std::ranges::any_of(evidence_.collectives, [&, other = other, here = here](const CollectiveRecord& before) {
      if (before.is_rendezvous) return false;  // some are of other threads, in no order with collectives
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
  std::map<std::tuple<int, int, Lane>, uint64_t> last_;  // the sequence that each rank came to, by group and lane
};

/// Whether ranks ended over it. When others fail, threads that save wait here for one another as they should.
bool is_why(const Evidence& evidence, const PendingCollective& wait) {
  const auto& [rank, entry] = *wait.collective->by_rank.begin();
  const std::string in_vain = bootstrap_wait_text(entry->unit);
  const auto says_so = [&](const FlightRecord& record) { return record.why.find(in_vain) != std::string::npos; };
  return std::ranges::any_of(evidence.records, says_so) ||
         std::ranges::any_of(wait.missing, [&](int member) { return !evidence.has(member); });
}

/// Meetings first, of those that are left: what ranks ended over.
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
    if (collective.is_rendezvous && !evidence.ended_by_launcher && !is_why(evidence, wait)) continue;
    if (!wait.missing.empty() || !wait.late.empty()) waits.push_back(std::move(wait));
  }
  std::ranges::stable_sort(waits, {}, place);
  return waits;
}

}  // namespace aliquot
