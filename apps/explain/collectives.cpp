#include "apps/explain/collectives.h"

#include <fmt/format.h>
#include <tuple>

namespace aliquot {
namespace {

using Members = const std::vector<int>*;

struct MembersLess {
  bool operator()(Members a, Members b) const { return *a < *b; }
};

/// Ranks number groups as they come; what two ranks share is the members, and the how-manieth group of them it is. Members may be
/// many, and collectives that name them too: they are never copied.
class Groups {
 public:
  /// What the record's groups are called for all ranks.
  std::vector<int> of(const FlightRecord& record) {
    std::map<Members, size_t, MembersLess> met;
    std::vector<int> groups;
    for (const std::vector<int>& members : record.groups) {
      std::vector<int>& alike = ids_[&members];
      const size_t ordinal = met[&members]++;
      if (ordinal == alike.size()) alike.push_back(count_++);
      groups.push_back(alike[ordinal]);
    }
    return groups;
  }

 private:
  std::map<Members, std::vector<int>, MembersLess> ids_;
  int count_ = 0;
};

using Place = std::tuple<bool, int, Lane, uint64_t>;

void add(std::map<Place, CollectiveRecord>& collectives, const FlightRecord& record, const std::vector<int>& called,
         const FlightEntry& entry) {
  const auto number = static_cast<size_t>(entry.group);
  CollectiveRecord& collective = collectives[{entry.is_rendezvous, called[number], entry.lane, entry.sequence}];
  collective.group = called[number];
  collective.members = &record.groups[number];
  collective.lane = entry.lane;
  collective.sequence = entry.sequence;
  collective.is_rendezvous = entry.is_rendezvous;
  collective.by_rank[record.rank] = &entry;
}

}  // namespace

bool in_same_order(const CollectiveRecord& a, const CollectiveRecord& b) {
  return a.is_rendezvous == b.is_rendezvous && a.group == b.group && a.lane == b.lane;
}

std::vector<CollectiveRecord> match_collectives(const std::vector<FlightRecord>& records) {
  Groups groups;
  std::map<Place, CollectiveRecord> collectives;
  for (const FlightRecord& record : records) {
    const std::vector<int> called = groups.of(record);
    for (const FlightEntry& entry : record.entries) add(collectives, record, called, entry);
    for (const FlightEntry& meeting : record.rendezvous) add(collectives, record, called, meeting);
  }
  std::vector<CollectiveRecord> in_order;
  for (auto& [place, collective] : collectives) in_order.push_back(std::move(collective));
  return in_order;
}

std::string collective_text(const CollectiveRecord& collective) {
  if (collective.is_rendezvous) return fmt::format("meeting #{}", collective.sequence);
  return fmt::format("collective #{} of the {} lane", collective.sequence, name(collective.lane));
}

double waited_seconds(const FlightEntry& entry, const FlightRecord& record) {
  if (entry.begun < 0) return -1;
  return (entry.ended < 0 ? record.written : entry.ended) - entry.begun;
}

std::string operation_text(const FlightEntry& entry) {
  return (entry.is_rendezvous ? "meeting" : entry.what.text()) + label_text(entry.unit, entry.step);
}

}  // namespace aliquot
