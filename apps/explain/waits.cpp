#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "apps/explain/findings.h"
#include "sharding/comm/exchange_purpose.h"

namespace aliquot {
namespace {

/// Who comes to a meeting that was given up is turned away: it ends for nobody, and those that came late hardly waited.
void find_late(const Evidence& evidence, UnendedCrossing& wait) {
  const auto waited = [&](int rank) { return waited_seconds(*wait.crossing->by_rank.at(rank), evidence.of(rank)); };
  double most = 0;
  for (const int rank : wait.waiting) most = std::max(most, waited(rank));
  const auto is_late = [&](int rank) { return waited(rank) < most / 2; };
  std::ranges::copy_if(wait.waiting, std::back_inserter(wait.late), is_late);
  std::erase_if(wait.waiting, is_late);
}

/// Where it was noted when ranks came and left.
UnendedCrossing wait_by_times(const Evidence& evidence, const Crossing& crossing) {
  UnendedCrossing wait{&crossing, {}, {}, {}};
  for (const int member : *crossing.members) {
    const auto found = crossing.by_rank.find(member);
    if (found == crossing.by_rank.end() && evidence.is_cut(member)) continue;
    if (found == crossing.by_rank.end() || found->second->begun < 0) {
      wait.missing.push_back(member);
    } else {
      (found->second->ended < 0 ? wait.waiting : wait.late).push_back(member);
    }
  }
  if (crossing.is_meeting && wait.late.empty()) find_late(evidence, wait);
  return wait;
}

/// Where the order is known in which each rank issued, and nothing else.
class IssueOrder {
 public:
  explicit IssueOrder(const Evidence& evidence) : evidence_(evidence) {
    for (const Crossing& crossing : evidence.crossings) {
      if (crossing.is_meeting) continue;
      for (const auto& [rank, entry] : crossing.by_rank)
        last_[{rank, crossing.group, crossing.lane}] = crossing.sequence;
    }
  }

  UnendedCrossing wait(const Crossing& crossing) const {
    UnendedCrossing wait{&crossing, {}, {}, {}};
    for (const int member : *crossing.members) {
      if (!crossing.by_rank.contains(member) && never_issued(crossing, member)) wait.missing.push_back(member);
    }
    if (wait.missing.empty()) return wait;
    for (const int member : *crossing.members) {
      if (crossing.by_rank.contains(member)) wait.waiting.push_back(member);
    }
    return wait;
  }

 private:
  /// Of a member that has no note of it: it may have forgotten it since.
  bool never_issued(const Crossing& crossing, int member) const {
    if (!evidence_.has(member)) return is_last_of_a_rank(crossing);
    if (evidence_.is_cut(member)) return false;
    const auto last = last_.find({member, crossing.group, crossing.lane});
    return last != last_.end() ? last->second < crossing.sequence : remembers_before(crossing, member);
  }

  /// Ranks issue in one order, so who remembers what another issued before this would remember this too.
  bool remembers_before(const Crossing& crossing, int member) const {
    const auto& entries = evidence_.of(member).entries;
    if (entries.empty() || entries.front().number == 1) return true;  // it has forgotten nothing
    const auto& [other, here] = *crossing.by_rank.begin();
    return std::ranges::any_of(evidence_.crossings, [&, other = other, here = here](const Crossing& before) {
      if (before.is_meeting) return false;  // some are of other threads, in no order with collectives
      const auto found = before.by_rank.find(other);
      return found != before.by_rank.end() && found->second->number < here->number && before.by_rank.contains(member);
    });
  }

  bool is_last_of_a_rank(const Crossing& crossing) const {
    return std::ranges::any_of(crossing.by_rank, [this](const auto& noted) {
      return !evidence_.is_cut(noted.first) && noted.second == &evidence_.of(noted.first).entries.back();
    });
  }

  const Evidence& evidence_;
  std::map<std::tuple<int, int, Lane>, uint64_t> last_;  // the sequence that each rank came to, by group and lane
};

/// Whether ranks ended over it. When others fail, threads that save wait here for one another as they should.
bool is_why(const Evidence& evidence, const UnendedCrossing& wait) {
  const auto& [rank, entry] = *wait.crossing->by_rank.begin();
  const std::string in_vain = exchange_wait_text(entry->unit);
  const auto says_so = [&](const FlightRecord& record) { return record.why.find(in_vain) != std::string::npos; };
  return std::ranges::any_of(evidence.records, says_so) ||
         std::ranges::any_of(wait.missing, [&](int member) { return !evidence.has(member); });
}

/// Meetings first, of those that are left: what ranks ended over.
std::pair<bool, uint64_t> place(const UnendedCrossing& wait) {
  return {!wait.crossing->is_meeting, wait.crossing->by_rank.begin()->second->number};
}

}  // namespace

std::vector<UnendedCrossing> waits_of(const Evidence& evidence) {
  const IssueOrder order(evidence);
  std::vector<UnendedCrossing> waits;
  const Crossing* stuck = nullptr;
  for (const Crossing& crossing : evidence.crossings) {
    if (stuck != nullptr && in_one_order(*stuck, crossing)) continue;
    UnendedCrossing wait = evidence.is_timed(crossing) ? wait_by_times(evidence, crossing) : order.wait(crossing);
    if (wait.waiting.empty()) continue;
    stuck = &crossing;
    if (crossing.is_meeting && !evidence.told_to_end && !is_why(evidence, wait)) continue;
    if (!wait.missing.empty() || !wait.late.empty()) waits.push_back(std::move(wait));
  }
  std::ranges::stable_sort(waits, {}, place);
  return waits;
}

}  // namespace aliquot
