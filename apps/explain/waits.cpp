#include "apps/explain/waits.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace aliquot {
namespace {

/// Where streams noted when they came and left.
UnendedCrossing wait_by_times(const Crossing& crossing) {
  UnendedCrossing wait{&crossing, {}, {}, {}};
  for (const int member : *crossing.members) {
    const auto found = crossing.by_rank.find(member);
    if (found == crossing.by_rank.end() || found->second->begun < 0) {
      wait.missing.push_back(member);
    } else {
      (found->second->ended < 0 ? wait.waiting : wait.late).push_back(member);
    }
  }
  return wait;
}

/// Where the order is known in which each rank issued, and nothing else.
class IssueOrder {
 public:
  explicit IssueOrder(const Evidence& evidence) : evidence_(evidence) {
    for (const Crossing& crossing : evidence.crossings) {
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
    const auto last = last_.find({member, crossing.group, crossing.lane});
    return last != last_.end() ? last->second < crossing.sequence : remembers_before(crossing, member);
  }

  /// Ranks issue in one order, so who remembers what another issued before this would remember this too.
  bool remembers_before(const Crossing& crossing, int member) const {
    const auto& entries = evidence_.of(member).entries;
    if (entries.empty() || entries.front().number == 1) return true;  // it has forgotten nothing
    const auto& [other, here] = *crossing.by_rank.begin();
    return std::ranges::any_of(evidence_.crossings, [&, other = other, here = here](const Crossing& before) {
      const auto found = before.by_rank.find(other);
      return found != before.by_rank.end() && found->second->number < here->number && before.by_rank.contains(member);
    });
  }

  bool is_last_of_a_rank(const Crossing& crossing) const {
    return std::ranges::any_of(crossing.by_rank, [this](const auto& noted) {
      return noted.second == &evidence_.of(noted.first).entries.back();
    });
  }

  const Evidence& evidence_;
  std::map<std::tuple<int, int, Lane>, uint64_t> last_;  // the sequence that each rank came to, by group and lane
};

uint64_t place(const UnendedCrossing& wait) { return wait.crossing->by_rank.begin()->second->number; }

}  // namespace

std::vector<UnendedCrossing> waits_of(const Evidence& evidence) {
  const IssueOrder order(evidence);
  std::vector<UnendedCrossing> waits;
  const Crossing* stuck = nullptr;
  for (const Crossing& crossing : evidence.crossings) {
    if (stuck != nullptr && stuck->group == crossing.group && stuck->lane == crossing.lane) continue;
    UnendedCrossing wait = evidence.timed ? wait_by_times(crossing) : order.wait(crossing);
    if (wait.waiting.empty()) continue;
    stuck = &crossing;
    if (!wait.missing.empty() || !wait.late.empty()) waits.push_back(std::move(wait));
  }
  std::ranges::stable_sort(waits, {}, place);
  return waits;
}

}  // namespace aliquot
